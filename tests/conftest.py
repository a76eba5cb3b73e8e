"""Settings for every test: one thread, which makes tiny models several times faster."""

import torch

torch.set_num_threads(1)
