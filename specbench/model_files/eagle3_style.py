"""What a head of EAGLE-3 says of itself, in the layouts that there are, and whether it fits."""

from dataclasses import dataclass

from specbench.errors import ModelError
from specbench.model_files.head_files import HeadFiles, Shaped
from specbench.model_files.head_fit import Fit, HeadTarget
from specbench.model_files.layer_config import layer_fields

# SafeAILab and SpecForge, speculators, and the first form of one norm a captured state.
EAGLE3_NAMES = {
    "model.midlayer.": "layers.0.",
    "midlayer.": "layers.0.",
    "model.": "",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}


def default_layer_ids(num_layers: int) -> tuple[int, ...]:
    """The states that a head fuses if its config is silent; layer i's input has number i."""
    ids = (2, num_layers // 2, num_layers - 3)
    return tuple(sorted(min(max(i, 0), num_layers - 1) for i in ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """What differs between heads, as their configs say it."""

    num_tokens: int
    layer_ids: tuple[int, ...]
    norm_before_residual: bool  # the residual is the normalised state
    norm_before_fc: bool  # one norm over all captured states
    fc_norm: bool  # one norm each
    norm_output: bool  # what is fed back went through the last norm (EAGLE-3.1)
    logit_scale: float

    @classmethod
    def of(cls, files: HeadFiles[Shaped], num_layers: int) -> "Style":
        """ModelError where the head is of another kind, or of layers that the target lacks."""
        config, source = files.fields, files.source
        inner = config.section("eagle_config")
        kind = config.text("speculators_model_type") or "eagle3"
        if kind != "eagle3" or (inner and inner.flag("use_aux_hidden_state") is False):
            what = f"speculators_model_type {kind}" if kind != "eagle3" else "use_aux_hidden_state"
            raise ModelError(
                f"{source} is not an EAGLE-3 head ({what}); choose its own method for it"
            )
        steps = (inner and inner.whole("parallel_draft_step")) or 1
        if config.flag("parallel_drafting") or steps > 1:
            what = f"parallel_draft_step is {steps}" if steps > 1 else "parallel_drafting is true"
            raise ModelError(
                f"{source}: {what} (P-EAGLE), which is not supported; choose an EAGLE-3 head that "
                "drafts one token after the other"
            )
        name = "eagle_aux_hidden_state_layer_ids"
        given = (inner.ids(name) if inner else None) or config.ids(name)
        layer_ids = given or default_layer_ids(num_layers)
        count = config.whole("num_aux_hidden_states") or len(layer_ids)
        if count != len(layer_ids):
            raise ModelError(
                f"{source}: num_aux_hidden_states is {count}, and {name} are {list(layer_ids)}"
            )
        if not all(0 <= i < num_layers for i in layer_ids):
            raise ModelError(
                f"{source} was not made for this target: {name} are {list(layer_ids)}, the "
                f"target's layers go from 0 to {num_layers - 1}"
            )
        layer = config.section("transformer_layer_config") or config
        scale = config.number("logit_scale")
        return cls(
            num_tokens=config.whole("draft_vocab_size") or layer.must("vocab_size", least=1),
            layer_ids=layer_ids,
            norm_before_residual=bool(config.flag("norm_before_residual")),
            norm_before_fc=bool(config.flag("norm_before_fc")),
            fc_norm=bool(config.flag("fc_norm")),
            norm_output=bool(config.flag("norm_output")),
            logit_scale=scale or 1.0,
        )


def eagle3_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """Sizes that have to be the target's; tensors go by the names of today. ModelError."""
    names, layer = files.tensors.keys(), layer_fields(files)
    size = layer.must("hidden_size")
    num_tokens = Style.of(files, target.num_layers).num_tokens
    needs_targets = not {"embed_tokens.weight", "lm_head.weight"} <= names
    of_target = files.fields.whole("target_hidden_size") or size
    return {
        "vocab_size": (layer.must("vocab_size"), target.vocab_size),
        "target_hidden_size": (of_target, target.hidden_size),
        "hidden_size": (size if needs_targets else target.hidden_size, target.hidden_size),
        "draft_vocab_size": (
            num_tokens if "lm_head.weight" not in names else target.vocab_size,
            target.vocab_size,
        ),
    }
