"""Tests whether speculation leaves the target's output unchanged.

Pairings go in, findings come out. Evidence is collected with torch and judged without it. Open
`judge.py` first; `collect.py` decodes, `report.py` writes the sentences.
"""
