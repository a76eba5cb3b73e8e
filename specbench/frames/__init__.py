"""The DataFrames of a stored run, with the unit of every figure.

In: a run and its analysis (`report.document`). Out: one DataFrame per table, whose columns are the
same for every run, and those tables as CSV and Parquet. Open `tables.py` first; a column is a key,
as in JSON (`doc.py`), and `column.py` has its type in pandas.
"""
