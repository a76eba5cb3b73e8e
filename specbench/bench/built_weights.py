"""Counts the weights of a model by building it without memory: the way for any architecture."""

from specbench.decoding.loading import ModelSource, load_skeleton
from specbench.model_files.model import ModelFiles
from specbench.pairing.weights import DTYPE_BYTES, Weights, kv_elements_per_token


def built_weights(files: ModelFiles, dtype: str) -> Weights | None:
    """Of a model whose config alone is there; None where its keys cannot be told.

    Raises ModelError where transformers has no such architecture.
    """
    spec = files.spec
    source = ModelSource(
        location=str(files.folder),
        revision=spec.revision,
        trust_remote_code=spec.trust_remote_code,
    )
    model = load_skeleton(source, dtype)
    kv, size = kv_elements_per_token(files), DTYPE_BYTES[dtype]
    if kv is None:
        return None
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding
    nbytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return Weights(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        nbytes=nbytes,
        read_bytes=nbytes - (0 if is_tied else embedding.nbytes),
        kv_bytes_per_token=kv * size,
        is_exact=spec.quantization is None,
        basis="built",
    )
