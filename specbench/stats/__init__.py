"""Statistics: estimates with errors, from floats and arrays.

Read `spread.py` and `intervals.py` first. The modules here do not depend on records, metrics or
cells. Every statistic is defined here once, including the formulas of rounds (`rounds.py`).
"""
