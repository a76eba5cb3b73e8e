"""A tiny target with a drafter of every method, in the decoder itself."""

from pathlib import Path

import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.methods import Setting
from specbench.records import Request, Sampling
from tests.tiny_models import HEADS, write_head, write_model

CONTEXT = 38  # tokens of the request below
REQUEST = Request(prompt_ids=tuple(range(10, 40)), max_new_tokens=8, sampling=Sampling(), seed=0)


class TinyDrafters:
    """Heads of random weights, and an engine that decodes with any of them."""

    def __init__(self, folder: Path) -> None:
        self.files = write_model(folder / "target")
        for method in ("draft_model", "token_intersection", "string_match"):
            write_model(folder / method, num_hidden_layers=2)
        for method in (*HEADS, "mtp"):
            write_head(folder / method, method, self.files)
        self._folder = folder

    def drafter(self, method: str, **parameters: Setting) -> DrafterSpec:
        folder = self._folder / method
        model = ModelSpec(source=str(folder), folder=folder) if folder.exists() else None
        return DrafterSpec(name=method, method=method, model=model, parameters=parameters)

    def decoded(self, drafter: DrafterSpec, k: int) -> BuiltinEngine:
        """An engine that has decoded a request with it, so that all its memory is allocated."""
        target = Target(name="tiny", model=self.files.spec, drafters=(drafter,))
        engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
        engine.add_drafter(drafter)
        engine.generate(REQUEST, Work(drafter=drafter.name, method=drafter.method, k=k))
        return engine
