"""Is the output the target's own? Evidence is collected with torch and judged without.

Pairings in, findings out. Open `judge.py` first; `collect.py` decodes, `report.py` words findings.
"""
