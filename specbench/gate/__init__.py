"""Has it got worse, and why? Two runs, or a baseline and a run, in; verdicts and causes out.

Start at `check.py`; `baseline.py` summarizes runs and `history.py` compares many of them.
"""
