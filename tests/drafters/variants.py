"""The drafters of the lossless tests: each with its defaults, and with the trees it can draft."""

from typing import Any, NamedTuple

from specbench.methods import all_methods

# What tests change from the defaults: by name, (method, parameters).
_TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "draft_model, tree 3 2": ("draft_model", {"tree": (3, 2)}),
    "medusa, chain": ("medusa", {"tree": "chain"}),
    "medusa, 5 drafts": ("medusa", {"max_drafts": 5}),
    "eagle, chain": ("eagle", {"tree": "chain"}),
    "eagle, static": ("eagle", {"tree": "static"}),
    "eagle3, chain": ("eagle3", {"tree": "chain"}),
    "eagle3, static": ("eagle3", {"tree": "static"}),
    "lookahead, window 3 ngram 3 guesses 2": (
        "lookahead",
        {"window": 3, "ngram": 3, "guesses": 2},
    ),
    "previous_turn, predicted output": ("previous_turn", {"verify_prediction_first": True}),
    "self_speculation, tree 3 2": ("self_speculation", {"tree": (3, 2)}),
    "suffix, long drafts": ("suffix", {"max_spec_factor": 8.0, "min_token_prob": 0.0}),
    "token_recycling, 12 drafts": ("token_recycling", {"max_drafts": 12}),
}


# Chains that end where the draft is less sure.
_STOPPING: dict[str, tuple[str, dict[str, Any]]] = {
    f"{method}, p_min 0.3": (method, {"p_min": 0.3, **parameters})
    for method, parameters in (
        ("draft_model", {}),
        ("dflash", {}),
        ("eagle", {"tree": "chain"}),
        ("mtp", {}),
    )
}


class Variant(NamedTuple):
    """A drafter with its parameters; `str` is the name of its tests."""

    name: str
    method: str
    parameters: dict[str, Any]

    def __str__(self) -> str:
        return self.name


VARIANTS = [
    *(Variant(method.name, method.name, {}) for method in all_methods()),
    *(Variant(name, *of) for name, of in _TREES.items()),
]
STOPPING = [Variant(name, *of) for name, of in _STOPPING.items()]
