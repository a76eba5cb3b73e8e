"""Statistics: estimates with errors, from floats and arrays.

Read `spread.py` and `intervals.py` first. No module here depends on records, metrics or cells.
Every statistic is defined here once, including the formulas of rounds (`rounds.py`).
"""
