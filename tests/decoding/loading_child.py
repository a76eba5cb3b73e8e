"""Loads a model in a separate process that the test watches.

    python -m tests.decoding.loading_child SMALL_FOLDER FOLDER DEVICE SCHEME DTYPE

Prints a line once all code is imported, waits for one, loads, and prints the bytes of the weights.
"""

import sys
from pathlib import Path

import torch

from specbench.files.model_spec import ModelSpec
from specbench.models.loading import load_model


def main(small: str, folder: str, device: str, scheme: str, dtype: str) -> None:
    torch.set_num_threads(1)
    quantization = None if scheme == "none" else scheme
    for location in (small, folder):
        if location == folder:
            print("ready", flush=True)
            sys.stdin.readline()
        source = ModelSpec(
            source=location, folder=Path(location), quantization=quantization, dtype=dtype
        )
        loaded = load_model(source, torch.device(device))
    print(loaded.weights_bytes, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
