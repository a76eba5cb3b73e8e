"""The DataFrames of a stored run, with the unit of every figure.

In: a run and its analysis (`report.document`). Out: one DataFrame per table, whose columns are the
same for every run, and those tables as CSV and Parquet. Open `tables.py` first; `column.py` says
what a column is, and a record's field has its unit and meaning (`doc.py`).
"""
