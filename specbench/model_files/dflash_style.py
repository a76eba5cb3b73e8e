"""What a DFlash head says of itself, and whether it fits. Facts: z-lab/dflash."""

from dataclasses import dataclass

from specbench.errors import ModelError
from specbench.model_files.fields import Fields
from specbench.model_files.head_files import HeadFiles, Shaped
from specbench.model_files.head_fit import Fit, HeadTarget, misfits

DFLASH_ARCHITECTURE = "DFlashDraftModel"
_NEEDS = ("target_layer_ids", "mask_token_id", "num_hidden_layers")


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashStyle:
    """What differs between heads, as their configs say it."""

    layer_ids: tuple[int, ...]  # of the target; the output of each is read
    mask_id: int
    block_size: int  # the current token and its drafts
    embedding_scale: float
    logit_scale: float
    softcap: float  # of logits; 0: none

    @classmethod
    def of(cls, files: HeadFiles[Shaped]) -> "DFlashStyle":
        """ModelError for relatives that are not run, for what it lacks, and wrong values."""
        given = _fields(files)
        if others := [n for n in given.texts("architectures") if n != DFLASH_ARCHITECTURE]:
            raise ModelError(
                f"{files.source}: architecture {others[0]}; {DFLASH_ARCHITECTURE} is supported"
            )
        if lacking := [name for name in _NEEDS if not given.has(name)]:
            given.lacks(*lacking)
        if given.flag("is_causal"):
            raise ModelError(
                f"{files.source}: is_causal is true; only non-causal blocks are supported"
            )
        layer_ids = given.ids("target_layer_ids")
        if not layer_ids:
            given.fail("target_layer_ids", "the numbers of one layer or more")
        scales = given.number("input_embedding_scale"), given.number("output_multiplier")
        return cls(
            layer_ids=layer_ids,
            mask_id=given.must("mask_token_id"),
            block_size=given.whole("block_size", least=2) or 16,
            embedding_scale=1.0 if scales[0] is None else scales[0],
            logit_scale=1.0 if scales[1] is None else scales[1],
            softcap=given.number("final_logit_softcapping") or 0.0,
        )


def dflash_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """A DFlash head's fit; ModelError also where it names layers or tokens the target lacks."""
    given, style = _fields(files), DFlashStyle.of(files)
    num_layers = given.whole("num_target_layers", least=1) or target.num_layers
    fit: Fit = {
        "hidden_size": (given.whole("hidden_size", least=1), target.hidden_size),
        "vocab_size": (given.whole("vocab_size", least=1), target.vocab_size),
        "num_target_layers": (num_layers, target.num_layers),
    }
    ids, mask_id = list(style.layer_ids), style.mask_id
    if not misfits(fit) and (max(ids) >= target.num_layers or mask_id >= target.vocab_size):
        raise ModelError(
            f"{files.source}: target_layer_ids {ids} and mask_token_id {mask_id} must lie within "
            f"the target's {target.num_layers} layers and {target.vocab_size} tokens"
        )
    return fit


def _fields(files: HeadFiles[Shaped]) -> Fields:
    """Its config, with what lies in the section of its own."""
    own = files.fields.section("dflash_config")
    values = {**files.config, **(own.values if own else {})}
    return Fields(source=files.source, values=values)
