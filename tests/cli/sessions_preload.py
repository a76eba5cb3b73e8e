"""The imports that every session needs, made once by the server that forks them."""

import torch

import specbench.bench.benchmark
import specbench.cli.answer
import specbench.cli.progress
import specbench.report.write  # noqa: F401

torch.set_num_threads(1)
