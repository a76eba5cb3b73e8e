"""What text needs of a multimodal model's files: the rest is never loaded."""

from collections.abc import Collection

from specbench.files.headers import is_embedding, is_head
from specbench.files.model import ModelFiles


def text_tensors(model: ModelFiles) -> tuple[Collection[str], tuple[str, ...]]:
    """The names of the tensors that text needs, and of the modules beside them, by their names.

    Text's are those that lie beside its embedding, and a head. All of them where the config has
    no part of its own for text, or none of the tensors is an embedding.
    """
    names = model.tensors or {}
    embedding = next(filter(is_embedding, names), None)
    if embedding is None or not isinstance(model.config.get("text_config"), dict):
        return tuple(names), ()
    path = tuple(embedding.split(".")[:-2])
    kept = [n for n in names if is_head(n) or tuple(n.split(".")[: len(path)]) == path]
    beside = {_parting(path, tuple(n.split("."))) for n in names.keys() - set(kept)}
    return kept, tuple(sorted(beside))


def _parting(path: tuple[str, ...], other: tuple[str, ...]) -> str:
    """The name of a module up to where its path leaves the text's."""
    shared = next((i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), 0)
    return ".".join(other[: shared + 1])
