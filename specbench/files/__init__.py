"""Facts from a model's files before it is loaded, without torch, pickle or foreign code.

From a folder it reads configs, shapes of tensors and kinds of heads. Open `model.py` first.
"""
