"""A model or a head as its files describe it, in a local folder or the hub's cache."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.errors import ModelError
from specbench.files.attention import longest_context
from specbench.files.fields import Fields
from specbench.files.folder import cached_folder, local_file, read_json
from specbench.files.head_files import HeadFiles
from specbench.files.headers import (
    HEAD_WEIGHTS,
    INDEX,
    MODEL_WEIGHTS,
    TensorHeader,
    read_index,
    weights_headers,
)
from specbench.files.layer_config import DENSE
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer_files import (
    read_chat_template,
    read_tokenizer,
    read_vocabulary,
)
from specbench.files.vocabulary import Vocabulary

# What architectures call a size that most call otherwise.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "dtype": ("torch_dtype",),
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_sequence_length", "max_seq_len"),
}
# Fields of the whole model, whichever part of it writes the text.
_WHOLE = ("dtype", "quantization_config")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


class ModelFiles:
    """Nothing is loaded, and a file is read when it is first asked for. All raise ModelError."""

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
            raise ModelError(f"{self.spec.source}: there is no config.json")
        return read_json(file)

    def field(self, name: str) -> Any:
        """A field of the language model's config under any of its names; None where it is not.

        `dtype` and `quantization_config` are the whole model's, where its config has them.
        """
        nested = self.config.get("text_config") or self.config.get("transformer_layer_config")
        text = nested if isinstance(nested, dict) else self.config
        for config in (self.config, text) if name in _WHOLE else (text,):
            for known in (name, *_SYNONYMS.get(name, ())):
                if config.get(known) is not None:
                    return config[known]
        return None

    def size(self, name: str) -> int | None:
        """A field that is a number above 0; None where it is not there, ModelError for others."""
        fields = Fields(source=self.spec.source, values={name: self.field(name)})
        return fields.whole(name, least=1)

    def must(self, name: str) -> int:
        """A size that has to be there."""
        value = self.size(name)
        if value is None:
            raise ModelError(f"{self.spec.source}: config.json has no {name}")
        return value

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
    def head_size(self) -> int:
        return self.size("head_dim") or self.hidden_size // self.must("num_attention_heads")

    @property
    def longest_context(self) -> int | None:
        try:
            return longest_context(self.field)
        except (TypeError, AttributeError) as error:
            raise ModelError(f"{self.spec.source}: config.json: its positions: {error}") from error

    @property
    def architecture(self) -> str | None:
        """The class that transformers would build."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def dense_kind(self) -> str | None:
        """The model type of a dense family whose whole models are tested; None for others."""
        kind = str(self.config.get("model_type"))
        is_proven = kind in DENSE and self.architecture == f"{kind.title()}ForCausalLM"
        return kind if is_proven else None

    @property
    def needs_code(self) -> bool:
        """Whether the model's own Python would have to run."""
        return bool(self.config.get("auto_map"))

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Every end-of-text id, as the decoder takes them: the generation settings go first."""
        file = local_file(self.folder, "generation_config.json")
        ids = read_json(file).get("eos_token_id") if file is not None else None
        if ids is None:
            ids = self.field("eos_token_id")
        if ids is None:
            return ()
        found = ids if isinstance(ids, list) else [ids]
        if not all(type(one) is int for one in found):
            raise ModelError(
                f"{self.spec.source}: eos_token_id is {str(ids)[:40]}; whole numbers are needed"
            )
        return tuple(found)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        return read_vocabulary(self._tokenizer_folder)

    def num_tokens(self, text: str) -> int | None:
        """How many tokens a text has; None without a tokenizer.json."""
        inner = self._tokenizer
        return len(inner.encode(text, add_special_tokens=False).ids) if inner else None

    @cached_property
    def chat_template(self) -> str | None:
        return read_chat_template(self._tokenizer_folder)

    @property
    def lacks_template(self) -> bool:
        """Whether prompts are fed as they are; tokenizers of other files may have a template."""
        return self.chat_template is None and self.tokenizer_file("tokenizer.json") is not None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there are files of any kind of tokenizer; code of its own may read others."""
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
        """Headers of a whole model's weights; None where no safetensors are there."""
        return weights_headers(self.folder, MODEL_WEIGHTS)

    @cached_property
    def head(self) -> HeadFiles[TensorHeader]:
        """Its files as those of a head; ModelError where its weights are not safetensors."""
        names = tuple(name for name in HEAD_WEIGHTS if name.endswith((".safetensors", ".json")))
        tensors = weights_headers(self.folder, names)
        if not tensors:
            raise ModelError(
                f"{self.spec.source}: its weights are {self.pickles[0]}, which only loading reads"
                if self.pickles
                else f"{self.spec.source}: there are no weights"
            )
        return HeadFiles(source=self.spec.source, config=self.config, tensors=tensors)

    @cached_property
    def pickles(self) -> tuple[str, ...]:
        """Names of the files that only unpickling could read."""
        found = (path.name for pattern in _PICKLES for path in self.folder.glob(pattern))
        return tuple(sorted(found))

    @property
    def lacking_weights(self) -> str | None:
        """Why there are no weights that could be loaded; None if there are."""
        if self.tensors is not None:
            return None
        if self.pickles:
            return "pickled weights are not read; convert them to safetensors first"
        return "there is no model.safetensors; download the whole model"


def open_model(spec: ModelSpec) -> ModelFiles:
    """The files that a spec names; ModelError where they are not on this machine."""
    folder = spec.folder or cached_folder(spec.source, spec.revision)
    if folder is None:
        raise ModelError(
            f"{spec.source} is not in the hub's cache of this machine; download it once with "
            f"`hf download {spec.source}` (its json files alone are enough to plan), or give a "
            "folder (./my-model)"
        )
    return ModelFiles(spec, folder)


def require_complete(spec: ModelSpec) -> None:
    """ModelError if a folder's weights are missing or cut off; engines download hub models.

    Engines read more files than we do: one of any kind is enough.
    """
    if spec.folder is None:
        return
    model = open_model(spec)
    kinds = ("*.safetensors", "*.gguf", *_PICKLES)
    if model.tensors is None and not any(next(model.folder.glob(kind), None) for kind in kinds):
        raise ModelError(f"{spec.source}: {model.lacking_weights}")


def num_rows(spec: ModelSpec) -> int | None:
    """Rows of a model's embedding, padding included; None if nothing on this machine says it."""
    try:
        return open_model(spec).vocab_size
    except ModelError:
        return spec.vocab_size


def has_weights(spec: ModelSpec) -> bool:
    """Whether its weights are on this machine, all shards of them; damaged ones count."""
    folder = spec.folder or cached_folder(spec.source, spec.revision)
    name = next((n for n in HEAD_WEIGHTS if folder and (folder / n).exists()), None)
    if folder is None or name != INDEX:
        return name is not None
    try:
        shards = read_index(folder / INDEX).values()
    except ModelError:
        return True
    return all((folder / shard).exists() for shard in shards)


def is_here(spec: ModelSpec) -> bool:
    """Whether its files, or its config at least, are on this machine."""
    folder = spec.folder or cached_folder(spec.source, spec.revision)
    return folder is not None and folder.is_dir()
