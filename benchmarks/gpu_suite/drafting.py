"""Every drafter with every tree at K = 2: whether its round is one graph, and its text right."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.decoders import GREEDY, make_runner, medium_pair, num_equal
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, in_a_line
from benchmarks.gpu_suite.made_up_tokenizers import made_up_tokenizers
from benchmarks.gpu_suite.models import random_prompt
from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter, NoDrafter
from specbench.decode.graphs import Launchers
from specbench.decode.scheduler import FixedK
from specbench.drafters.registry import Parts, build_drafter, drafter_class
from specbench.files.medusa import ACCURACIES, NEW_HEADS
from specbench.forward.runner import Runner
from specbench.methods import all_methods
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request

K = 2
WIDTHS = (3, 2)  # of a tree that has no name
_RATES = [0.4, 0.2, 0.1]
Parameters = dict[str, Any]


def one_graph(machine: Machine) -> Json:
    """Greedy texts of made-up heads and drafts in float32 against K = 0, and what launched."""
    pair = medium_pair(machine, torch.float32, layers=machine.pick(4, 2))
    target = make_runner(machine, pair.target)
    draft = make_runner(machine, pair.draft)
    launchers = Launchers("round", machine.device)

    def served(drafter: Drafter, k: int) -> tuple[Decoder, list[tuple[int, ...]]]:
        clock = make_clock(machine.device)
        decoder = Decoder(target, drafter, eos_ids=(), clock=clock, make_launcher=launchers)
        results = decoder.serve(requests, GREEDY, FixedK(k), num_rows=len(requests)).results
        return decoder, [result.output_ids for result in results]

    requests = _requests(pair.target.config.vocab_size, machine.pick(24, 8))
    _, expected = served(NoDrafter(), 0)
    found: dict[str, Json] = {}
    left_out = []
    for name, method, parameters in variants():
        if not machine.has_time():
            left_out.append(name)
            continue
        try:
            drafter = build_drafter(method, _parts(method, target, draft), parameters)
            k = min(K, drafter.capabilities.max_k or K)
            decoder, texts = served(drafter, k)
        except Exception as error:
            found[name] = {"refused": in_a_line(error)}
            continue
        launcher = decoder.launcher
        assert launcher is not None, "it has served"
        found[name] = {
            "k": k,
            "graph": launcher.graph,
            "graph_reason": launcher.reason,
            "needs_host": drafter.capabilities.needs_host,
            "equal": num_equal(texts, expected),
            "of": len(requests),
        }
    ran = [one for one in found.values() if "graph" in one]
    whole = [one for one in ran if not one["needs_host"]]
    num_captured = sum(one["graph"] == "round" and not one["graph_reason"] for one in whole)
    num_right = sum(one["equal"] == one["of"] for one in ran)
    return {
        "drafters": found,
        "left_out_for_time": left_out,
        "table": _table(found),
        "claims": [
            all_of("drafters and trees that ran", len(ran), len(found)),
            all_of("of these with the texts of K = 0 in float32", num_right, len(ran)),
            claim(
                f"one graph a round, of {len(whole)} that need no host",
                num_captured,
                at_least=len(whole),
                reason=None if machine.is_cuda else NO_GPU,
            ),
        ],
    }


def variants() -> Iterator[tuple[str, str, Parameters]]:
    """Every method as it comes, and with each other tree that it can draft: name, method, how."""
    for method in all_methods():
        yield method.name, method.name, {}
        for parameter in method.parameters:
            if parameter.name == "tree":
                trees = parameter.allowed if isinstance(parameter.allowed, tuple) else (WIDTHS,)
                for tree in trees:
                    if tree != parameter.default:
                        yield f"{method.name}, tree {tree}", method.name, {"tree": tree}


def _parts(method: str, target: Runner, draft: Runner) -> Parts:
    return Parts(
        target=target,
        draft_runner=lambda: draft,
        checkpoint=partial(_made_up_head, method, target),
        tokenizers=partial(made_up_tokenizers, target.vocab_size, draft.vocab_size),
    )


def _made_up_head(method: str, target: Runner) -> Checkpoint:
    with target.device:
        head: Checkpoint = drafter_class(method).new_checkpoint(target.model.config, seed=0)
    # Trees may be fitted to these: how often a head's likeliest tokens were right.
    return replace(head, config={**head.config, ACCURACIES: [_RATES] * NEW_HEADS})


def _requests(vocab: int, new_tokens: int) -> list[Request]:
    """Texts that repeat themselves, for lookups to find, and a guess at the answer."""
    return [
        Request(
            prompt_ids=random_prompt(7, vocab, seed) * 3,
            max_new_tokens=new_tokens - seed,
            prediction_ids=random_prompt(new_tokens, vocab, seed + 9),
        )
        for seed in range(2)
    ]


def _table(found: dict[str, Json]) -> Json:
    rows = [
        [name, one["graph"], one["graph_reason"], f"{one['equal']} of {one['of']}"]
        if "graph" in one
        else [name, "none", one["refused"], "-"]
        for name, one in found.items()
    ]
    return {"columns": ["drafter at K = 2", "graph", "reason", "equal texts"], "rows": rows}
