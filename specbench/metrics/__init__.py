"""Metrics: one number per cell from its records, with unit, direction and formula.

A metric is one decorated pure function; `registry.py` lists them all, and `CellData` in `cell.py`
is their input.
"""
