"""Can a head be trained for my target? Prompts in, a head's checkpoint and its card out.

It learns from what the target itself says. Open `train_head.py` first.
"""
