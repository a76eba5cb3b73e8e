"""How sure is a number? Only numbers enter: floats and arrays in, estimates with errors out.

Start at `spread.py` and `intervals.py`; nothing here knows a record, a metric or a cell. Every
statistic stands here once, the acceptance formulas (`acceptance.py`) among them.
"""
