"""Facts from a model's files before it is loaded, without torch, pickle or foreign code.

A folder goes in; configs, shapes of tensors and kinds of heads come out. Open `model.py` first.
"""
