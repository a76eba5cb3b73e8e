"""The drafters of one target, each with the model or the head that was loaded for it."""

from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from specbench.decode.drafter import Drafter, NoDrafter
from specbench.decode.lossy import LossyVerifier
from specbench.decode.round import Verifier
from specbench.decode.verifier import verify
from specbench.drafters.registry import Parts, build_drafter, drafter_class
from specbench.engines.engine import Work
from specbench.engines.kernel_choices import KernelChoices
from specbench.engines.model_forwards import Forwards
from specbench.engines.model_pool import ModelPool, bytes_read, head_identity, identity, shown
from specbench.errors import ModelError, UsageError
from specbench.files.config import NO_TREES
from specbench.files.model_spec import ModelSpec
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner
from specbench.inputs.pairing import DrafterSpec
from specbench.library_facts import newer_than_tested
from specbench.methods import find_method
from specbench.models.checkpoint import Checkpoint
from specbench.models.library_errors import errors_translated
from specbench.models.loading import LoadedModel, first_not_finite, not_finite_words
from specbench.models.retokenizer import require_common_tokens
from specbench.models.tokenizer import ChatTokenizer, require_same_vocabulary
from specbench.records import NO_DRAFTER, LossyRule, ModelIdentity
from specbench.settings.groups import ModelImplementation
from specbench.untrusted import parse_json

FILE = "training.json"


def trained_for(spec: ModelSpec) -> str | None:
    """Content hash of the target that a head was trained for; None if training.json is missing."""
    try:
        training = parse_json((Path(spec.location) / FILE).read_bytes())
        sha256 = training["target"]["sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return sha256 if isinstance(sha256, str) else None


class PooledModel(NamedTuple):
    """A model taken from the pool, with its runner."""

    spec: ModelSpec
    loaded: LoadedModel
    runner: Runner
    notes: tuple[str, ...]


def take(
    pool: ModelPool,
    spec: ModelSpec,
    forward: ModelImplementation,
    kernels: KernelChoices,
    role: Literal["target", "draft"] = "target",
) -> PooledModel:
    """Load the model from the pool, check its runner and choose its kernels; ModelError."""
    newer = "; ".join(newer_than_tested())
    try:
        loaded = pool.load(spec, role)
        try:
            runner, notes = make_checked_runner(loaded.model, forward)
            runner = kernels.choose(runner, forward, shown(spec))
            notes = (*loaded.notes, *notes)
        except Exception:
            pool.release(spec)
            raise
    except ModelError as error:
        if newer:
            raise type(error)(f"{error} ({newer})") from error
        raise
    if newer and role == "target":  # the check of the runner would have raised an error
        notes += (f"{newer}; this model's logits equal transformers' own: yes",)
    pool.give_back()  # memory of the matrices that were joined into larger ones
    return PooledModel(spec, loaded, runner, tuple(f"{shown(spec)}: {note}" for note in notes))


class LoadedDrafters:
    """The loaded drafters by name; the baseline's `NoDrafter` is always loaded."""

    def __init__(
        self,
        target: PooledModel,
        tokenizer: ChatTokenizer,
        pool: ModelPool,
        forward: ModelImplementation,
        kernels: KernelChoices,
    ) -> None:
        self._target = target
        self._tokenizer = tokenizer
        self._pool = pool
        self._forward = forward
        self._kernels = kernels
        self._methods: dict[str, Drafter] = {NO_DRAFTER: NoDrafter()}
        self._models: dict[str, PooledModel] = {}
        self.rules: dict[str, LossyRule] = {}  # lossy rules, by drafter
        self._trees: dict[str, str] = {}  # by drafter, words for the tree that limits K
        self.max_ks: dict[str, int] = {}  # the limit of K by drafter, also of removed drafters
        self.notes = target.notes

    def __getitem__(self, name: str) -> Drafter:
        return self._methods[name]

    @errors_translated()
    def add(self, drafter: DrafterSpec) -> ModelIdentity | None:
        """Load the drafter; returns its model's identity. UsageError, ModelError or
        CompatibilityError."""
        method_row, spec = find_method(drafter.method), drafter.model
        is_head = method_row.is_head
        tokenizer, head = self._tokenizer, cache(partial(self._head, drafter))
        if is_head:
            head()
        if spec is not None and (not is_head or self._pool.has_tokenizer(spec)):
            # Vocabularies are compared before the weights are loaded.
            tokenizer = self._pool.tokenizer(spec)
            if method_row.retokenizes:
                common = require_common_tokens(self._tokenizer.vocabulary, tokenizer.vocabulary)
                self._note(f"{drafter.name}: {common.in_words}")
            else:
                difference = require_same_vocabulary(self._tokenizer, tokenizer)
                if renamed := difference.renamed:
                    self._note(
                        f"{drafter.name}: {len(renamed)} special tokens have other names than the "
                        f"target's, the first is id {renamed[0][0]}"
                    )
                if difference.unknown:
                    self._note(f"{drafter.name}: {difference.unknown_words}")
        parts = Parts(
            target=self._target.runner,
            draft_runner=partial(self._draft_runner, drafter),
            checkpoint=head,
            tokenizers=lambda: (self._tokenizer, tokenizer),
        )
        method = build_drafter(drafter.method, parts, dict(drafter.parameters))
        if drafter.p_min is not None:
            method.p_min = drafter.p_min
            if self._target.runner.device.type != "cpu":
                self._note(f"{drafter.name}: p_min: all K drafts are computed, and fewer verified")
        _refuse_trees(drafter.name, method, self._target.runner)
        if is_head and first_not_finite(("", tensor) for tensor in method.resources.weights) == "":
            name = first_not_finite(head().tensors.items())
            raise ModelError(not_finite_words(f"the head {drafter.name}", name))
        if isinstance(layers := method.resources.cached_layers, LayerStack):
            self._note(*self._kernels.choose_for_layers(layers, self._forward, drafter.name))
            self._pool.give_back()  # memory of the matrices that were joined into larger ones
        self._methods[drafter.name] = method
        if drafter.lossy is not None:
            self.rules[drafter.name] = drafter.lossy
        if method.capabilities.max_k is not None:
            self.max_ks[drafter.name] = method.capabilities.max_k
            self._trees[drafter.name] = _in_tree(drafter)
        if spec is None:
            return None
        if is_head:
            self._note_other_target(drafter.name, spec)
            sha256 = self._pool.checkpoint_sha256(spec, head())
            weights = method.resources.weights
            return head_identity(drafter.name, spec, head(), sha256, weights, tokenizer)
        return identity(drafter.name, spec, self._models[drafter.name].loaded, tokenizer)

    def _note_other_target(self, name: str, spec: ModelSpec) -> None:
        """Note a head that was trained for another target: it runs, but drafts poorly."""
        made_for, target = trained_for(spec), self._target.loaded.content_sha256
        if made_for is not None and not target.endswith(made_for):
            self._note(
                f"{name}: its head was trained for a different target than "
                f"{self._target.spec.source} (training.json names other weights): few of its "
                "drafts will be accepted"
            )

    def remove(self, name: str) -> None:
        """Remove the drafter, and free its model's memory unless it is used elsewhere."""
        self._methods.pop(name, None)
        self.rules.pop(name, None)
        if ref := self._models.pop(name, None):
            spec = ref.spec
            del ref
            self._pool.release(spec)
        else:
            self._pool.collect()

    def verifier(self, name: str) -> Verifier:
        """The verifier of the named drafter."""
        rule = self.rules.get(name)
        return verify if rule is None else LossyVerifier(rule)

    def depth(self, work: Work) -> int:
        """The K of `work`, at most the drafter's limit if adaptive; UsageError for a larger K."""
        most = self._methods[work.drafter].capabilities.max_k
        if most is None or work.k <= most:
            return work.k
        if not work.adaptive:
            tree = self._trees.get(work.drafter, "")
            raise UsageError(
                f"{work.drafter} drafts at most {most} tokens ahead{tree}; choose -k {most}"
            )
        return most

    def weights_bytes(self, name: str) -> int:
        """Bytes of the drafter's model or head."""
        ref = self._models.get(name)
        if ref is not None:
            return ref.loaded.weights_bytes
        return sum(tensor.nbytes for tensor in self._methods[name].resources.weights)

    def forwards(self, name: str, part: str) -> Forwards:
        """The runner of a part of the drafter's head, or of its model."""
        resources = self._methods[name].resources
        if part:
            return resources.head_parts[part]
        assert resources.runner is not None, f"{name} counts forwards and has no runner"
        return resources.runner

    def bytes_read(self, name: str, part: str) -> tuple[int, int]:
        """Bytes of weights that a forward reads, and bytes per token of context."""
        resources = self._methods[name].resources
        if part:
            head_part = resources.head_parts[part]
            return head_part.weights_bytes, head_part.kv_bytes_per_token
        if ref := self._models.get(name):
            return bytes_read(ref.loaded), resources.kv_bytes_per_token
        first, whole = resources.runner, self._target.runner
        assert first is not None, f"{name} counts forwards and has no runner"
        kv = whole.cache.bytes_per_token * first.num_layers // whole.num_layers
        return bytes_read(self._target.loaded, first.num_layers), kv

    def _head(self, drafter: DrafterSpec) -> Checkpoint:
        """A head's checkpoint, which may be in the target's files; random for dummy weights."""
        spec = drafter.model or self._target.spec
        if not self._pool.is_dummy(spec):
            return self._pool.checkpoint(spec)
        config = self._target.loaded.model.config
        checkpoint: Checkpoint = drafter_class(drafter.method).new_checkpoint(config, seed=0)
        return checkpoint

    def _draft_runner(self, drafter: DrafterSpec) -> Runner:
        if drafter.model is None:
            raise UsageError(f"{drafter.name}: method {drafter.method} needs `model:`")
        ref = take(self._pool, drafter.model, self._forward, self._kernels, "draft")
        self._note(*ref.notes)
        self._models[drafter.name] = ref
        return ref.runner

    def _note(self, *notes: str) -> None:
        self.notes = (*self.notes, *(note for note in notes if note not in self.notes))


def _refuse_trees(name: str, method: Drafter, target: Runner) -> None:
    """Raise ModelError if drafts form a tree and a model's recurrent state allows only chains."""
    is_chain = all(method.num_drafts(k) == k for k in (1, method.capabilities.max_k or 4))
    for runner in (target, method.resources.runner):
        if runner is not None and runner.most_drafts is not None and not is_chain:
            raise ModelError(f"{name}: {type(runner.model).__name__} {NO_TREES}")


def _in_tree(drafter: DrafterSpec) -> str:
    """Words such as ` in its tree (`tree: auto`)`; empty if it does not draft a named tree."""
    for parameter in find_method(drafter.method).parameters:
        if parameter.name == "tree":
            tree = drafter.parameters.get("tree", parameter.default)
            return f" in its tree (`tree: {tree}`)" if tree and tree != "chain" else ""
    return ""
