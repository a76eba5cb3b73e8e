"""How sure is a number? Only numbers enter: floats and arrays in, estimates with errors out.

Start at `intervals.py`; nothing here knows a record, a metric or a cell.
"""
