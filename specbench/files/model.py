"""The files of a model or a head, in a local folder or the hub's cache."""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specbench.errors import ModelError
from specbench.files.config import (
    DENSE,
    DTYPES,
    MOST_LAYERS,
    ROUTING,
    Experts,
    Fields,
    ReadField,
    longest_context,
    num_positions,
    require_layers,
    require_routing,
)
from specbench.files.gguf import gguf_of
from specbench.files.head_files import Difference, HeadFiles, packed, unscaled
from specbench.files.headers import (
    HEAD_WEIGHTS,
    INDEX,
    MODEL_WEIGHTS,
    TensorHeader,
    adapter_file,
    is_embedding,
    is_head,
    lacking_weights,
    local_file,
    read_index,
    read_json,
    same_bytes,
    weights_headers,
)
from specbench.files.model_spec import GGUF_ADVICE, ModelSpec
from specbench.files.tokenizer import (
    Vocabulary,
    read_chat_template,
    read_tokenizer,
    read_vocabulary,
)
from specbench.library_facts import READERS, knows_format

MLX = "MLX"  # its configs name no quant_method
DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
TRUST_CODE = (
    "set trust_remote_code: true for it in pairings.yaml only if you trust its authors' code"
)
UNKNOWN_TYPE = (
    "the installed transformers does not know the model_type of its config.json; correct it, or "
    "install a newer transformers"
)
# Other names of fields in some architectures.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "dtype": ("torch_dtype",),
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "moe_top_k",
        "top_k_experts",
    ),
    "quantization_config": ("quantization",),  # of MLX
    "max_position_embeddings": ("n_positions", "n_ctx", "max_sequence_length", "max_seq_len"),
}
# Fields that belong to the whole model, not only to its language model.
_WHOLE = ("dtype", "quantization_config", "eos_token_id")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


class ModelFiles:
    """The files of a model, each read on first use. All methods may raise ModelError."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder

    def __repr__(self) -> str:
        return f"ModelFiles({self.spec.source})"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json as it is written."""
        file = local_file(self.folder, "config.json")
        if file is None:
            raise ModelError(f"{self.spec.source}: config.json is missing")
        return read_json(file)

    def field(self, name: str) -> Any:
        """A field of the language model's config under any of its names; None if absent.

        Fields in `_WHOLE` come from the whole model's config if it has them.
        """
        nested = self.config.get("text_config") or self.config.get("transformer_layer_config")
        text = nested if isinstance(nested, dict) else self.config
        for config in (self.config, text) if name in _WHOLE else (text,):
            for known in (name, *_SYNONYMS.get(name, ())):
                if config.get(known) is not None:
                    return config[known]
        return None

    def size(self, name: str) -> int | None:
        """A field that is a number above 0; None if absent, ModelError for other values."""
        return self._only(name).whole(name, least=1)

    def must(self, name: str) -> int:
        """A required size; ModelError if it is missing."""
        return self._only(name).must(name, least=1)

    def _only(self, name: str) -> Fields:
        return Fields(source=self.spec.source, values={name: self.field(name)})

    @property
    def hidden_size(self) -> int:
        return self.must("hidden_size")

    @property
    def num_layers(self) -> int:
        return self.must("num_hidden_layers")

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padding included."""
        return self.must("vocab_size")

    @property
    def experts(self) -> Experts | None:
        """The experts of a mixture of experts; None for other models."""
        return Experts.of(self.field("num_experts"), self.field("num_experts_per_tok"))

    @property
    def longest_context(self) -> int | None:
        return self._positions(longest_context)

    @property
    def num_positions(self) -> int | None:
        """The number of its positions, as `files.config.num_positions` reads it."""
        return self._positions(num_positions)

    def _positions(self, read: Callable[[ReadField], int | None]) -> int | None:
        try:
            return read(self.field)
        except (TypeError, AttributeError) as error:
            require_config(self)  # names the field, if it can
            raise ModelError(f"{self.spec.source}: config.json: its positions: {error}") from error

    @property
    def architecture(self) -> str | None:
        """The class that transformers would build."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def stored_dtype(self) -> str:
        """The dtype that its weights have if loading does not convert them: the config's, else that
        of the first tensor of floating-point numbers; float32 for types that cannot run."""
        dtype = self.field("dtype")
        if dtype is None and self.tensors:
            floats = (t.dtype for t in self.tensors.values() if t.is_floating_point())
            dtype = {"F64": "float64", "BF16": "bfloat16", "F16": "float16"}.get(next(floats, ""))
        return dtype if isinstance(dtype, str) and dtype in DTYPE_BYTES else "float32"

    @property
    def stored_format(self) -> str | None:
        """Format of the stored weights: `gptq`, `awq`, `torchao` ...; None: plain tensors."""
        stored = self.field("quantization_config")
        return None if stored is None else format_name(stored)

    @property
    def dense_kind(self) -> str | None:
        """The model type of a dense family whose whole models are tested; None for others."""
        kind = str(self.config.get("model_type"))
        is_proven = kind in DENSE and self.architecture == f"{kind.title()}ForCausalLM"
        return kind if is_proven else None

    @property
    def needs_code(self) -> bool:
        """Whether the model comes with Python code that would have to run."""
        return bool(self.config.get("auto_map"))

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        """generation_config.json as it is written; {} if it is missing."""
        file = local_file(self.folder, "generation_config.json")
        return {} if file is None else read_json(file)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Every end-of-text id; as in the decoder, generation_config.json takes precedence."""
        ids = self.generation.get("eos_token_id")
        if ids is None:
            ids = self.field("eos_token_id")
        if ids is None:
            return ()
        eos = ids if isinstance(ids, list) else [ids]
        if not all(type(token) is int for token in eos):
            raise ModelError(
                f"{self.spec.source}: eos_token_id is {str(ids)[:40]}; expected whole numbers"
            )
        return tuple(eos)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        return read_vocabulary(self._tokenizer_folder)

    def num_tokens(self, text: str) -> int | None:
        """The number of tokens in a text; None without a tokenizer.json."""
        inner = self._tokenizer
        return len(inner.encode(text, add_special_tokens=False).ids) if inner else None

    @cached_property
    def chat_template(self) -> str | None:
        return read_chat_template(self._tokenizer_folder)

    @property
    def lacks_template(self) -> bool:
        """Whether prompts are used as they are; tokenizers in other files may have a template."""
        return self.chat_template is None and self.tokenizer_file("tokenizer.json") is not None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer file of any known kind, or code that may read another."""
        kinds = ("tokenizer.json", "vocab.*", "tekken.json", "*.model", "*.tiktoken")
        folder = self._tokenizer_folder
        return self.needs_code or any(next(folder.glob(kind), None) for kind in kinds)

    def tokenizer_file(self, name: str) -> Path | None:
        return local_file(self._tokenizer_folder, name)

    @property
    def _tokenizer_folder(self) -> Path:
        return Path(self.spec.tokenizer_location) if self.spec.is_shape else self.folder

    @cached_property
    def _tokenizer(self) -> Any:
        return read_tokenizer(self._tokenizer_folder)

    @cached_property
    def tensors(self) -> Mapping[str, TensorHeader] | None:
        """Headers of a whole model's weights; None without safetensors."""
        return weights_headers(self.folder, MODEL_WEIGHTS)

    @cached_property
    def head(self) -> HeadFiles[TensorHeader]:
        """The files read as those of a head; ModelError if the weights are not safetensors."""
        if (pickle := self.head_pickle) is not None:
            raise ModelError(
                f"{self.spec.source}: its weights are {pickle}, which is read only when loading"
            )
        if not (tensors := weights_headers(self.folder, HEAD_WEIGHTS)):
            raise ModelError(f"{self.spec.source}: {lacking_weights(self.folder, HEAD_WEIGHTS)}")
        return HeadFiles(source=self.spec.source, config=self.config, tensors=tensors)

    @property
    def head_pickle(self) -> str | None:
        """The name of the file that a head's weights are read from, if that is a pickle."""
        name = next((name for name in HEAD_WEIGHTS if local_file(self.folder, name)), "")
        return name if name.endswith((".pt", ".bin")) else None

    @cached_property
    def pickles(self) -> tuple[str, ...]:
        """Names of the files that only unpickling could read."""
        names = (path.name for pattern in _PICKLES for path in self.folder.glob(pattern))
        return tuple(sorted(names))

    @property
    def adapter(self) -> str | None:
        """The name of a LoRA adapter's weights next to its own, if there are any."""
        return adapter_file(self.folder)

    @property
    def lacking_weights(self) -> str | None:
        """Why no weights can be loaded; None if they can."""
        if self.tensors is not None:
            return None
        if self.pickles:
            return "pickled weights are not read; convert them to safetensors first"
        return lacking_weights(self.folder, MODEL_WEIGHTS)


def _folder_of(spec: ModelSpec) -> Path | None:
    """The folder of a model's files; None for a hub model that was not downloaded."""
    if spec.folder is not None:
        return spec.folder
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - half a second
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        config = try_to_load_from_cache(spec.source, "config.json", revision=spec.revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) and Path(config).exists() else None


def open_model(spec: ModelSpec) -> ModelFiles:
    """The files that a spec names; ModelError if they are GGUF or not on this machine."""
    if spec.is_gguf:
        raise ModelError(f"{spec.source} {GGUF_ADVICE}")
    folder = _folder_of(spec)
    if folder is None:
        raise ModelError(
            f"{spec.source} is not in the hub's cache of this machine; download it once with "
            f"`hf download {spec.source}` (its json files are enough to plan), or give a "
            "folder (./my-model)"
        )
    return ModelFiles(spec, folder)


def require_complete(spec: ModelSpec) -> None:
    """Raise ModelError if a folder's weights are missing or truncated. Engines download hub models.

    Engines read more kinds of files than we do, so a file of any kind is enough.
    """
    if spec.folder is None:
        return
    model = open_model(spec)
    kinds = ("*.safetensors", "*.gguf", *_PICKLES)
    if model.tensors is None and not any(next(model.folder.glob(kind), None) for kind in kinds):
        raise ModelError(f"{spec.folder}: {model.lacking_weights}")


def num_rows(spec: ModelSpec) -> int | None:
    """Rows of a model's embedding, padding included; None if unknown on this machine."""
    try:
        return len(gguf_of(spec).vocabulary.tokens) if spec.is_gguf else open_model(spec).vocab_size
    except ModelError:
        return spec.vocab_size


def has_weights(spec: ModelSpec) -> bool:
    """Whether a model's weights are on this machine, with all shards; damaged files count."""
    folder = _folder_of(spec)
    name = next((n for n in HEAD_WEIGHTS if folder and (folder / n).exists()), None)
    if folder is None or name != INDEX:
        return name is not None
    try:
        shards = read_index(folder / INDEX).values()
    except ModelError:
        return True
    return all((folder / shard).exists() for shard in shards)


def is_here(spec: ModelSpec) -> bool:
    """Whether a model's files, or at least its config, are on this machine."""
    folder = _folder_of(spec)
    return folder is not None and folder.exists()


# Far above any real model; a larger number is a typo or an attack.
_MOST: Mapping[str, int] = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": MOST_LAYERS,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**16,
    "vocab_size": 2**24,
    "num_labels": 2**20,  # transformers names each of them
}
_MOST_PIECES = 4  # compared of two tables; the first rows are enough
_WITH_SCALES = ("awq", "bitnet", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "torchao")
QUANTIZED_BY = "hf_quant_config.json"  # of NVIDIA's modelopt; transformers does not read it
_MAY_BE_ZERO = ("intermediate_size", "num_key_value_heads")  # 0 in layers that have none


def require_config(model: ModelFiles) -> None:
    """Raise ModelError, with field and value, for a size that no model has, also in a list per
    layer, and for values from which a library could not build a model."""
    for name, most in _MOST.items():
        value = model.field(name)
        least = 0 if name in _MAY_BE_ZERO else 1
        for number in value if isinstance(value, list) else [value]:
            Fields(source=model.spec.source, values={name: number}).whole(name, least, most)
    _ = model.eos_ids
    text_fields = Fields(
        source=model.spec.source,
        values={name: model.field(name) for name in ("dtype", "layer_types", *ROUTING)},
    )
    if isinstance(text_fields.values["dtype"], str) and text_fields.values["dtype"] not in DTYPES:
        text_fields.fail("dtype", "a dtype of torch, such as bfloat16")
    text_fields.texts("layer_types")
    require_routing(text_fields)
    fields = Fields(source=model.spec.source, values=model.config)
    fields.texts("architectures")
    fields.not_null("auto_map", "num_labels")
    if model.dense_kind is not None:
        require_layers(fields)
        fields.whole("num_key_value_heads", least=1)
        fields.whole("pad_token_id", least=-1, most=model.vocab_size - 1)


def require_weights(model: ModelFiles) -> None:
    """Raise ModelError if config.json lacks a size, which a library would replace by its default,
    or does not belong to the weights."""
    source = model.spec.source
    parts = [part for part in model.config.values() if isinstance(part, dict)]
    # The class of a part has its own defaults, and so does a model's own code.
    is_flat = not (model.needs_code or any("model_type" in part for part in parts))
    for name in ("hidden_size", "num_hidden_layers", "vocab_size") if is_flat else ():
        if model.field(name) is None:
            model.must(name)
    tensors = model.tensors
    if not tensors:
        return
    if model.stored_format is not None:
        if lacking := unscaled(tensors, always=model.stored_format in _WITH_SCALES):
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise ModelError(
                f"{source}: lacks the scales of {lacking[0]}{more}; download the model again"
            )
        for name in tensors:
            if name.endswith("weight_packed") and (
                (shape := name.removesuffix("packed") + "shape") not in tensors
            ):
                raise ModelError(f"{source}: lacks {shape}; download the model again")
        return
    runs_own_code = model.needs_code and model.spec.trust_remote_code
    has_scales = not str(model.field("dtype")).startswith("float8")
    if has_scales and not runs_own_code:
        weights = [n for n, t in tensors.items() if n.endswith(".weight") or t.is_floating_point()]
        if stored := packed(tensors, weights):
            is_named = local_file(model.folder, QUANTIZED_BY) is not None
            only = f" (only {QUANTIZED_BY} names the format)" if is_named else ""
            raise ModelError(
                f"{source}: {stored[0]}, and its config.json has no quantization_config{only}, so "
                "nothing would read its scales; name the checkpoint in plain weights"
            )
    if not is_flat:
        return
    table = min(filter(is_embedding, tensors), key=len, default=None)
    head = min(filter(is_head, tensors), key=len, default=None)
    is_tied = model.field("tie_word_embeddings")
    if is_tied and head and table and not same_bytes(tensors[head], tensors[table], _MOST_PIECES):
        raise ModelError(
            f"{source}: config.json: tie_word_embeddings is true, and {head} differs from {table}: "
            "it is unclear which of them is the output head; set it to false to use both"
        )


def refusal(difference: Difference) -> str:
    """The reason of a difference that keeps a whole model from being loaded, and what to do."""
    advice = "take the config.json that the weights came with, or download the model again"
    if any(map(is_head, difference.missing)):
        advice += "; set tie_word_embeddings to true if the model has no head"
    return f"its files do not fit its config.json: {difference.reason}; {advice}"


def format_name(stored: object) -> str:
    """The format that a `quantization_config` names."""
    facts = stored if isinstance(stored, Mapping) else {}
    is_old = {"load_in_4bit", "load_in_8bit"} & facts.keys()  # old bitsandbytes wrote no name
    is_mlx = {"group_size", "bits"} <= facts.keys()
    unnamed = "bitsandbytes" if is_old else MLX if is_mlx else "an unnamed format"
    method = facts.get("quant_method", unnamed)
    return str(getattr(method, "value", method))  # str() of an enum member includes its class


def unloadable_reason(model: ModelFiles) -> str | None:
    """Why this installation cannot load the weights in the form that the model's entry and files
    specify, and what to do; None if it can. ModelError."""
    spec, stored = model.spec, model.field("quantization_config")
    needs: dict[str, tuple[str, ...]] = {}
    if spec.device_map is not None:
        needs[f"device_map {spec.device_map}"] = ("accelerate",)
    if spec.quantization is not None:
        needs[f"quantization {spec.quantization}"] = ("torchao",)
    if stored is not None:
        method = format_name(stored)
        if spec.quantization is not None:
            return (
                f"its weights are stored as {method} and cannot be packed again; leave out "
                f"`quantization: {spec.quantization}`"
            )
        if method == MLX:
            return "its weights are packed by MLX; name the checkpoint that it came from"
        if knows_format(method) is False:
            return f"its weights are stored as {method}, which transformers cannot read"
        needs[f"the format {method} of its weights"] = READERS.get(method, ())
    for feature, packages in needs.items():
        missing = [name.replace("_", "-") for name in packages if find_spec(name) is None]
        if missing:
            return f"{feature} needs {' and '.join(missing)}; pip install {' '.join(missing)}"
    return None


def is_all_fp8(stored: Mapping[str, Any]) -> bool:
    """Whether the `quantization_config` is of compressed-tensors, with all packed weights fp8."""
    groups = stored.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [group.get("weights") if isinstance(group, Mapping) else None for group in groups]
    are_fp8 = [
        isinstance(weight, Mapping) and (weight.get("type"), weight.get("num_bits")) == ("float", 8)
        for weight in weights
    ]
    return stored.get("quant_method") == "compressed-tensors" and any(are_fp8) and all(are_fp8)
