"""What an engine, a machine or a model may refuse."""

import torch

from specbench.errors import CompatibilityError, ModelError, UsageError, WorkloadError

# A refusal is a stored result, and the rest goes on.
REFUSALS = (ModelError, CompatibilityError, UsageError, WorkloadError, torch.OutOfMemoryError)
