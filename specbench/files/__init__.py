"""What do a model's files say before anything is loaded? No torch, no pickle, no foreign code.

A folder in, configs, shapes of tensors and kinds of heads out. Open `model.py` first.
"""
