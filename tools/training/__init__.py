"""Trains a draft head for a target on the target's answers to prompts, and writes its checkpoint
and card. Start with `train_head.py`.
"""
