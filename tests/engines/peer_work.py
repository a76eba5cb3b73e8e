"""Requests of tests to the peer, and how tests watch it."""

from contextlib import contextmanager

from torch.nn.modules.module import register_module_forward_hook

from specbench.engines.engine import Work
from specbench.engines.transformers import ASSISTED_DEFAULT_K
from specbench.engines.transformers_engine import TransformersEngine
from specbench.records import NO_DRAFTER, Request, Sampling
from tests.tiny_models import spec_of
from tests.tiny_pair import make_tokenizer

PROMPT = tuple(range(5, 25))
NUM_TOKENS = 24
BASELINE = TransformersEngine.baseline
STATIC = Work(drafter=NO_DRAFTER, method="generate_static", k=0)
ASSISTED = Work(drafter="draft", method="assisted", k=4)
DEFAULT = Work(drafter="draft", method="assisted_default", k=ASSISTED_DEFAULT_K)
LOOKUP = Work(drafter="ngram", method="prompt_lookup", k=4)
DRAFTING = [ASSISTED, DEFAULT, LOOKUP]
ALL = [BASELINE, STATIC, *DRAFTING]


def request(num_tokens=NUM_TOKENS, *, temperature=0.0, seed=0, prompt=PROMPT, **changes):
    return Request(
        prompt_ids=prompt,
        max_new_tokens=num_tokens,
        sampling=Sampling(temperature=temperature),
        seed=seed,
        **{"stop_at_eos": False, **changes},
    )


def saved(folder, model):
    """The folder of the saved model, next to the tiny pair's tokenizer."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return spec_of(folder)


def by_method(work):
    return work.method


@contextmanager
def watched(seen):
    """`seen(module, inputs, output)` of every forward of every module."""
    hook = register_module_forward_hook(seen)
    try:
        yield
    finally:
        hook.remove()
