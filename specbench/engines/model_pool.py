"""The models of a run, each loaded once, so that engines measured together share weights."""

import gc
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.kernels.availability import DEVICES
from specbench.models.checkpoint import WEIGHT_KINDS, Checkpoint, has_tokenizer, read_checkpoint
from specbench.models.library_output import report_compiling
from specbench.models.loading import (
    LoadedModel,
    first_not_finite,
    load_model,
    not_finite_words,
    weights_sha256,
)
from specbench.models.parts import layers_of
from specbench.models.tokenizer import ChatTokenizer
from specbench.models.weights import give_back_host_memory
from specbench.records import ModelIdentity


class ModelPool:
    """Loads a model on its first `load` and keeps it until its last `release`.

    `dtype` overrides the dtypes of pairings.yaml; None: no override. `dummy`: all weights are
    random.
    """

    def __init__(
        self, device: torch.device, dtype: str | None = None, *, dummy: bool = False
    ) -> None:
        self.device = device
        if device.type in DEVICES:
            report_compiling()
        self._dtype = dtype
        self._dummy = dummy
        self._models: dict[ModelSpec, LoadedModel] = {}
        self._num_holders: dict[ModelSpec, int] = {}
        self._tokenizers: dict[ModelSpec, ChatTokenizer] = {}

    def load(self, spec: ModelSpec, role: Literal["target", "draft"] = "target") -> LoadedModel:
        """The model, shared by all callers; each call needs a `release`. ModelError."""
        if spec not in self._models:
            wanted = replace(spec, dtype=self._dtype or spec.dtype)
            loaded = load_model(wanted, self.device, dummy=self._dummy)
            if name := first_not_finite(loaded.model.named_parameters()):
                raise ModelError(not_finite_words(f"the {role} {shown(spec)}", name))
            self._models[spec] = loaded
            self._num_holders[spec] = 0
        self._num_holders[spec] += 1
        return self._models[spec]

    def release(self, spec: ModelSpec) -> None:
        """Release a `load`; frees the memory after the last one. Drop your reference before."""
        self._num_holders[spec] -= 1
        if self._num_holders[spec] == 0:
            del self._models[spec], self._num_holders[spec]
            self.collect()

    def collect(self) -> None:
        """Free unused memory, including models with reference cycles."""
        gc.collect()
        self.give_back()

    def give_back(self) -> None:
        """Return freed memory to the device or the system."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            give_back_host_memory()

    def is_dummy(self, spec: ModelSpec) -> bool:
        """Whether the model gets random weights."""
        return self._dummy or spec.is_shape

    def checkpoint(self, spec: ModelSpec) -> Checkpoint:
        """The files of a head; ModelError if they cannot be used."""
        if spec.quantization is not None:
            raise ModelError(
                f"{spec.source}: heads run as they are stored; leave out `quantization: "
                f"{spec.quantization}`"
            )
        return read_checkpoint(spec.location, spec.revision)

    def checkpoint_sha256(self, spec: ModelSpec, checkpoint: Checkpoint) -> str:
        """A hash of a head's weights; for random weights, of the config that they depend on."""
        if self.is_dummy(spec):
            facts = json.dumps(dict(checkpoint.config), sort_keys=True, default=str)
            return "dummy:" + hashlib.sha256(facts.encode()).hexdigest()
        return weights_sha256(spec.location, checkpoint.revision, WEIGHT_KINDS)

    def has_tokenizer(self, spec: ModelSpec) -> bool:
        """Whether a head has its own tokenizer; otherwise it uses the target's."""
        return not self.is_dummy(spec) and has_tokenizer(spec.location, spec.revision)

    def tokenizer(self, spec: ModelSpec) -> ChatTokenizer:
        """The model's tokenizer; its weights need not be loaded. ModelError."""
        if spec not in self._tokenizers:
            self._tokenizers[spec] = ChatTokenizer(
                spec.tokenizer_location,
                revision=spec.revision,
                trust_remote_code=spec.trust_remote_code,
            )
        return self._tokenizers[spec]


def bytes_read(loaded: LoadedModel, num_layers: int | None = None) -> int:
    """Bytes of weights that a forward reads, through the first `num_layers` layers if given. An
    input embedding is not counted unless it is also the LM head."""
    embedding = loaded.model.get_input_embeddings().weight
    head = loaded.model.get_output_embeddings().weight
    is_tied = embedding.data_ptr() == head.data_ptr()
    skipped = layers_of(loaded.model)[num_layers:] if num_layers is not None else []
    unread = sum(weight.nbytes for layer in skipped for weight in layer.parameters())
    return loaded.weights_bytes - unread - (0 if is_tied else embedding.nbytes)


def identity(
    name: str, spec: ModelSpec, loaded: LoadedModel, tokenizer: ChatTokenizer
) -> ModelIdentity:
    """The identity of the weights and the tokenizer that a result belongs to."""
    return ModelIdentity(
        name=name,
        source=shown(spec),
        revision=loaded.revision,
        content_sha256=loaded.content_sha256,
        tokenizer_sha256=tokenizer.sha256,
        dtype=loaded.dtype,
        num_parameters=loaded.num_parameters,
        template_sha256=tokenizer.template_sha256,
        template_clock=tokenizer.template_clock,
    )


def head_identity(
    name: str,
    spec: ModelSpec,
    checkpoint: Checkpoint,
    checkpoint_sha256: str,
    weights: Sequence[Tensor],
    tokenizer: ChatTokenizer,
) -> ModelIdentity:
    """The identity of the head that a result belongs to; `weights` are the tensors in use."""
    return ModelIdentity(
        name=name,
        source=shown(spec),
        revision=checkpoint.revision,
        content_sha256=checkpoint_sha256,
        tokenizer_sha256=tokenizer.sha256,
        dtype=str(weights[0].dtype).removeprefix("torch."),
        num_parameters=sum(tensor.numel() for tensor in weights),
    )


def shown(spec: ModelSpec) -> str:
    """The model's name in output: its source, or the name of its folder without those above."""
    return spec.folder.name if spec.folder else spec.source
