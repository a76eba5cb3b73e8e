"""Measures a run: settings in, a stored run out.

Plan, load, warm up, interleave, save after every block. Open `benchmark.py` first, then
`plan.py`.
"""
