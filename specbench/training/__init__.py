"""Trains a draft head for a target: prompts in, a head's checkpoint and its card out.

The head is trained on the target's answers. Open `train_head.py` first.
"""
