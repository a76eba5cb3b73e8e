"""Is the output the target's own? Collected with torch, judged without.

A pairing in, evidence and a verdict out. Open `answer.py` first; `judge.py` is the test.
"""
