"""Strict readers of pairings.yaml, prompts and method parameters.

They return frozen values; an error names file and line. Without torch. Open `config.py` for
pairings and `workloads.py` for prompts first.
"""
