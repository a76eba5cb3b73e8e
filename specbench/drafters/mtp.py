"""MTP layers, with which a target was trained to predict more than one token ahead.

Each layer joins an embedding and a state and runs a decoder layer. Shape suffixes: B rows,
T tokens, W tokens in one step, L MTP layers, F hidden size, V vocabulary, E experts, I width of an
expert.
"""

from collections.abc import Container, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from specbench.decode.drafter import Chunk, DrafterForward, HeadPart, Outcome, Proposal
from specbench.decode.growth import grow_chain
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.feature_drafter import FeatureDrafter, Reads, TreePlan, blank_states
from specbench.drafters.shared.layers import (
    WRONG_CONFIG,
    fitting,
    new_layer_fields,
    output_weights,
    random_weights,
    shapes_of,
    tensors_of,
)
from specbench.errors import ModelError, first_line
from specbench.files.head_files import AnyFiles, Difference, HeadFiles, Shaped
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.files.mtp import (
    FAMILIES,
    Family,
    family_name,
    family_of,
    file_name,
    layer_tensors,
    num_mtp_layers,
    prefixes,
    text_fields,
)
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches
from specbench.models.checkpoint import Checkpoint


def copies(checkpoint: HeadFiles[Shaped], kind: Literal["embedding", "head"]) -> list[str]:
    """The names of the layers' copies of a target's tensor in the files, if there are any."""
    named = prefixes(checkpoint).items()
    return [f"{old}weight" for old, new in named if new.endswith(f".{kind}.")]


_JOINED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def by_expert(
    name: str, shape: tuple[int, ...], joined: Container[str] = ()
) -> dict[str, tuple[int, ...]]:
    """The names and shapes that one tensor of transformers has in the files.

    Most files have separate matrices for each expert, except for the tensors in `joined`.
    """
    before, _, last = name.rpartition(".")
    if not before.endswith(".experts") or name in joined:
        return {name: shape}
    parts, (E, IF, F) = _JOINED[last], shape
    rows = IF // len(parts)
    return {f"{before}.{e}.{part}.weight": (rows, F) for e in range(E) for part in parts}


def joined_experts(name: str, shape: tuple[int, ...], files: Mapping[str, Tensor]) -> Tensor:
    """A tensor in the form of transformers, from those of the files."""
    names = list(by_expert(name, shape, files))
    if names == [name]:
        return files[name]
    return torch.cat([files[of_expert] for of_expert in names]).view(shape)


def split_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The inverse of `joined_experts`."""
    shapes = by_expert(name, tuple(tensor.shape))
    if list(shapes) == [name]:
        return {name: tensor}
    pieces = torch.split(tensor.flatten(0, 1), [shape[0] for shape in shapes.values()])
    return dict(zip(shapes, pieces, strict=True))


# Config fields that layers read although the class of their config does not declare them.
_UNDECLARED_FIELDS = ("head_dim", "rope_theta", "rope_scaling", "partial_rotary_factor")
_MIMO = "MiMoForCausalLM"
_ALWAYS_FLOAT32 = "e_score_correction_bias"  # also in transformers; it only chooses experts


class MtpLayer(nn.Module):
    """join([norm(token), norm(state)]), then a decoder layer, then a norm."""

    def __init__(self, block: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        make_norm = type(block.input_layernorm)  # the norm of Qwen's hybrids adds 1 to its weights
        if make_norm is Qwen2RMSNorm:
            make_norm = nn.RMSNorm  # the same in one operation
        self.token_norm = make_norm(hidden_size, eps=eps)
        self.state_norm = make_norm(hidden_size, eps=eps)
        self.join = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.block: nn.Module = block
        self.out_norm = make_norm(hidden_size, eps=eps)
        self.head: nn.Linear | None = None

    def input(self, tokens_BTF: Tensor, states_BTF: Tensor, *, is_state_first: bool) -> Tensor:
        """The input of the decoder layer [B, T, F]."""
        pair = self.token_norm(tokens_BTF), self.state_norm(states_BTF)
        joined_BTF: Tensor = self.join(torch.cat(pair[::-1] if is_state_first else pair, -1))
        return joined_BTF


class _RotaryOfAxes(nn.Module):
    """A rotary embedding with several axes, for text: a token's position is the same on each."""

    def __init__(self, rotary: nn.Module, num_axes: int) -> None:
        super().__init__()
        self.rotary, self.num_axes = rotary, num_axes

    def forward(self, states_BTF: Tensor, positions_BT: Tensor) -> Any:
        return self.rotary(states_BTF, positions_BT.expand(self.num_axes, -1, -1))


class MtpHead:
    """A FeatureHead whose step at depth d runs MTP layer d, modulo their number.

    It starts from the target's state after the final norm. For some families vLLM sets the
    embedding at position 0 to zero; training and transformers do not, and neither does this class.
    """

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """ModelError names the fields that do not fit the target, or the tensors that are wrong."""
        checkpoint = fitting(checkpoint, target, "mtp")
        self.family = family_of(checkpoint)
        self.num_layers = self.num_depths = num_mtp_layers(checkpoint)
        self.features: tuple[int, ...] = (target.num_layers,)
        self.feature_size = target.hidden_size
        self.state_size = self.num_layers * target.hidden_size  # a row stores one state per layer
        self.num_tokens = target.vocab_size
        self.device, self.dtype = target.device, target.dtype
        self._target = target
        self.module, decoder = make_layers(checkpoint)
        load_layers(self.module, checkpoint, target)
        rotary, axes = type(decoder.rotary_emb)(decoder.config), self.family.num_axes
        self.layers = LayerStack(
            decoder.config,
            [self._layer(i).block for i in range(self.num_layers)],
            (_RotaryOfAxes(rotary, axes) if axes > 1 else rotary).to(target.device),
            target,
        )
        if self.num_layers > 1:
            self.layers.run_stock("layers after the first do not see a row's first slots")

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (*self.module.parameters(), *self.module.buffers())

    def files(self, checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        files: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            files |= split_experts(file_name(checkpoint, name), tensor)
        return files

    def reads(self, depth: int = 0) -> Reads:
        layer, is_normed = self._layer(depth % self.num_layers), self.family.recycles_normed
        step = tensors_of(layer.token_norm, layer.state_norm, layer.join, layer.block)
        norm = tensors_of(layer.out_norm)
        head = output_weights(self._target) if layer.head is None else tensors_of(layer.head)
        return Reads(
            fuse=(),
            step=(*step, *norm) if is_normed else step,
            logits=head if is_normed else (*norm, *head),
        )

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        return features[0]

    def step(
        self,
        tokens_BT: Tensor,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        depth: int = 0,
    ) -> Tensor:
        i = depth % self.num_layers
        layer, embedded_BTF = self._layer(i), self._target.embed(tokens_BT)
        states_BTF = self.layers.forward(
            layer.input(embedded_BTF, states_BTF, is_state_first=self.family.is_state_first),
            positions_BT,
            span,
            first_row=first_row,
            branches=branches,
            only=i,
            first_slot=i,  # a state of layer i depends on i earlier tokens
        )
        return layer.out_norm(states_BTF) if self.family.recycles_normed else states_BTF

    def logits(self, states_BTF: Tensor, depth: int = 0) -> Tensor:
        layer = self._layer(depth % self.num_layers)
        if not self.family.recycles_normed:
            states_BTF = layer.out_norm(states_BTF)
        return self._target.logits(states_BTF) if layer.head is None else layer.head(states_BTF)

    def _layer(self, i: int) -> MtpLayer:
        layer = self.module[i]
        assert isinstance(layer, MtpLayer)
        return layer


def make_layers(checkpoint: HeadFiles[Shaped]) -> tuple[nn.ModuleList, Any]:
    """The MTP layers without weights, and the model that their decoder layers come from."""
    family, count = family_of(checkpoint), num_mtp_layers(checkpoint)
    given = {**_decoder_fields(text_fields(checkpoint).values, family), **family.fields}
    given |= {"num_hidden_layers": count, "layer_types": ["full_attention"] * count}
    try:
        with torch.device("meta"):
            config = AutoConfig.for_model(family.decoder, **given)
            decoder = AutoModel.from_config(config, attn_implementation="eager")
            F, eps = decoder.config.hidden_size, decoder.config.rms_norm_eps
            layers = nn.ModuleList(MtpLayer(block, F, eps) for block in decoder.layers)
    except WRONG_CONFIG as error:
        raise ModelError(
            f"{checkpoint.source}: its config is wrong: {first_line(error)}"
        ) from error
    for layer in layers[1:]:
        for name in family.shared:
            setattr(layer, name, getattr(layers[0], name))
    return layers, decoder


def _decoder_fields(given: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The entries that are fields of the family's decoder config.

    The files are not trusted, and transformers reads more than sizes from a config: an attention
    implementation may name a repository whose code it downloads and runs.
    """
    config_class = type(AutoConfig.for_model(family.decoder))
    known = {f.name for f in fields(config_class)} - {f.name for f in fields(PreTrainedConfig)}
    known |= {*config_class.attribute_map, *_UNDECLARED_FIELDS}
    return {name: value for name, value in given.items() if name in known}


def layer_shapes(layers: nn.ModuleList, family: Family) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors that the layers must have; shared tensors belong to layer 0."""
    return {
        name: shape
        for name, shape in shapes_of(layers).items()
        if name.startswith("0.") or name.split(".")[1] not in family.shared
    }


def require_tensors(layers: nn.ModuleList, files: AnyFiles) -> AnyFiles:
    """The files with only the layers' tensors; ModelError unless they are those that the layers
    read."""
    stored, fields = layer_tensors(files), text_fields(files)
    needed: dict[str, tuple[int, ...]] = {}
    for name, shape in layer_shapes(layers, family_of(files)).items():
        needed |= by_expert(file_name(files, name), shape, stored.tensors)
    table_VF = fields.must("vocab_size"), fields.must("hidden_size")
    optional = frozenset([*copies(files, "head"), *copies(files, "embedding")])
    stored.require(needed | dict.fromkeys(optional, table_VF), optional)
    return stored


def tensor_difference(spec: ModelSpec) -> Difference:
    """No difference; ModelError if a model's headers are not those that its MTP layers read."""
    files = open_model(spec).head
    require_tensors(make_layers(files)[0], files)
    return Difference()


@torch.no_grad()
def load_layers(layers: nn.ModuleList, checkpoint: Checkpoint, target: Runner) -> None:
    """Load the checkpoint's tensors into the layers, on the target's device.

    The embedding is the target's. So is the output matrix, unless the files have another one.
    """
    stored, F, V = require_tensors(layers, checkpoint), target.hidden_size, target.vocab_size
    files = {
        name: (file_name(checkpoint, name), shape)
        for name, shape in layer_shapes(layers, family_of(checkpoint)).items()
    }
    heads = copies(checkpoint, "head")

    def placed(name: str, tensor: Tensor) -> Tensor:
        dtype = torch.float32 if name.endswith(_ALWAYS_FLOAT32) else target.dtype
        return tensor.to(target.device, dtype)

    for name, (file, shape) in files.items():
        tensor = placed(name, joined_experts(file, shape, stored.tensors))
        layers.load_state_dict({name: tensor}, strict=False, assign=True)
    for layer, file in zip(layers, heads, strict=False):
        head_VF = stored.tensors.get(file)
        if head_VF is None or _is_same(head_VF, checkpoint.tensors.get("lm_head.weight")):
            continue
        own_VF = placed(file, head_VF)
        if not any(_is_same(own_VF, weight) for weight in output_weights(target)):
            layer.head = nn.Linear(F, V, bias=False, device="meta")
            layer.head.weight = nn.Parameter(own_VF)
    layers.requires_grad_(False).eval()


def _is_same(tensor: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are equal; a packed one is never regarded as equal."""
    if other is None or type(other.data) is not Tensor:
        return False
    return (tensor.shape, tensor.dtype) == (other.shape, other.dtype) and torch.equal(tensor, other)


@drafter("mtp")
class Mtp(FeatureDrafter):
    """Drafts with the target's MTP layers, each over its own keys and values.

    They come from the target's own files, or from those of `model:`. Layer 0 computes its state at
    a position from the next token and the target's state at that position. Layer i > 0 uses the
    state of layer i - 1 at the previous position instead. Each layer processes every known token
    once, with the same states as in training. Draft tokens are fed again in each round: the first i
    of them to layer i. At greater depths the layers repeat, with layer 0 after the last one.
    """

    open_head = MtpHead
    head: MtpHead

    def __init__(self, parts: Parts) -> None:
        head = self.open_head(parts.checkpoint(), parts.target)
        super().__init__(head, TreePlan())
        # Later layers need states of the layer before, and a row stores only the last ones.
        self.capabilities = replace(self.capabilities, keeps_prefix=head.num_layers == 1)

    @staticmethod
    def new_checkpoint(config: Any, seed: int, *, num_layers: int = 1) -> Checkpoint:
        """Random MTP layers for a target with this transformers config, named as in its files; they
        have MiMo's layout if the family's is unknown."""
        text = config.get_text_config()
        family = family_name(config.model_type)
        fields = text.to_dict() if family in FAMILIES else new_layer_fields(config, _MIMO)
        family = family if family in FAMILIES else "mimo"
        fields |= {"model_type": family, "num_hidden_layers": text.num_hidden_layers}
        fields |= {"num_nextn_predict_layers": num_layers}
        empty = Checkpoint(source=f"new {family} MTP layers", config=fields, tensors={})
        layers, _ = make_layers(empty)
        weights = random_weights(layers, seed, fields.get("initializer_range") or 0.02)
        tensors: dict[str, Tensor] = {}
        for name in layer_shapes(layers, FAMILIES[family]):
            tensors |= split_experts(file_name(empty, name), weights[name])
        return replace(empty, tensors=tensors)

    def prefill(self, state: State, chunk: Chunk) -> None:
        states_BTF = self._feed(
            chunk.following_BT,
            chunk.features,
            chunk.positions_BT,
            chunk.span,
            before_BLF=self._last_states(state),
            first_row=state.first_row,
        )
        # `observe` continues from the states at the token before the prompt's last one.
        at_B1 = state.length_B1 - 2 - chunk.positions_BT[:, :1]
        index_B1F = at_B1.clamp(0, states_BTF.shape[1] - 1)[..., None].expand(
            -1, 1, states_BTF.shape[2]
        )
        last_hidden_BF = state.rows_of(self._last_RF)
        last_hidden_BF.copy_(
            torch.where(at_B1 >= 0, states_BTF.gather(1, index_B1F)[:, 0], last_hidden_BF)
        )

    def observe(self, state: State, outcome: Outcome) -> None:
        states_BTF = self._feed(
            outcome.following_BT,
            outcome.features,
            outcome.positions_BT,
            outcome.span,
            before_BLF=self._last_states(state),
            first_row=state.first_row,
        )
        outcome.keep_last(states_BTF, state.rows_of(self._last_RF))

    def _feed(
        self,
        tokens_BT: Tensor,
        features: tuple[Tensor, ...],
        positions_BT: Tensor,
        span: int,
        *,
        before_BLF: Tensor,
        first_row: int = 0,
    ) -> Tensor:
        """All layers' states [B, T, L * F] at known tokens; `before_BLF` are one position back."""
        head = self.head
        states_BTF, made = head.fuse(features), []
        for i in range(head.num_layers):
            states_BTF = head.step(
                tokens_BT, states_BTF, positions_BT, span, first_row=first_row, depth=i
            )
            made.append(states_BTF)
            states_BTF = torch.cat([before_BLF[:, i : i + 1], states_BTF[:, :-1]], 1)
        return torch.cat(made, -1)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head, states_BLF = self.head, self._last_states(state)
        depth, tokens_BW, states_BWF = 0, state.tokens_BC[:, :0], states_BLF[:, :0]

        def follow(tokens_B1: Tensor, positions_B1: Tensor) -> Tensor:  # noqa: ARG001
            """Feed this depth's layer the draft tokens after its last known one; returns logits."""
            nonlocal depth, tokens_BW, states_BWF
            if depth < head.num_layers:
                states_BWF = torch.cat([states_BLF[:, depth : depth + 1], states_BWF], 1)
            depth += 1
            W = min(depth, head.num_layers)
            tokens_BW = torch.cat([tokens_BW, tokens_B1], 1)[:, -W:]
            places_BW = state.positions(depth - W, W)
            states_BWF = head.step(
                tokens_BW, states_BWF, places_BW, span, first_row=state.first_row, depth=depth
            )
            return head.logits(states_BWF[:, -1:], depth)

        logits_BV = head.logits(states_BLF[:, :1])[:, 0]
        return grow_chain(state, logits_BV, follow, k, sampler, self.p_min)

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """`observe` runs all layers over known tokens, `layer i` runs layer i over draft tokens."""
        head, L = self.head, self.head.num_layers
        (state_11F,) = blank_states(head, head.feature_size)

        def observe(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            features = (state_11F.expand(-1, tokens_1T.shape[1], -1),)
            before_1LF = state_11F.expand(-1, L, -1)
            made = self._feed(tokens_1T, features, positions_1T, span, before_BLF=before_1LF)
            return head.logits(made[:, -1:, : head.feature_size])

        def draft(tokens_1T: Tensor, positions_1T: Tensor, span: int, *, depth: int) -> Tensor:
            states_1TF = state_11F.expand(-1, tokens_1T.shape[1], -1)
            states_1TF = head.step(tokens_1T, states_1TF, positions_1T, span, depth=depth)
            return head.logits(states_1TF[:, -1:], depth)

        reads = [head.reads(i) for i in range(L)]
        known = (*(weight for layer in reads for weight in layer.step), *reads[0].logits)
        parts = {
            "observe": HeadPart(run=observe, weights=known, layers=head.layers, num_attending=L)
        }
        for i, layer in enumerate(reads):
            parts[f"layer {i}"] = HeadPart(
                run=partial(draft, depth=i),
                weights=(*layer.step, *layer.logits),
                layers=head.layers,
                num_attending=1,
            )
        return parts

    def _forwards(self, k: int) -> tuple[DrafterForward, ...]:
        L = self.head.num_layers
        drafts = (DrafterForward(min(depth, L), f"layer {depth % L}") for depth in range(1, k))
        return (DrafterForward(k + 1, "observe"), *drafts)

    def _last_states(self, state: State) -> Tensor:
        """The last state of each layer [B, L, F]."""
        return state.rows_of(self._last_RF).view(state.num_rows, self.head.num_layers, -1)
