"""Detects regressions and their causes. Two runs, or a baseline and a run, go in; verdicts and
causes come out.

Start at `check.py`; `baseline.py` summarizes runs and `history.py` compares many of them.
"""
