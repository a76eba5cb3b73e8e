"""Which model families does the decoder run? Asked of every decoder in transformers' registry.

`registry.py` makes a tiny model of each, `proof.py` says what becomes of it, `table.py` writes
docs/families.md. Run `python -m tools.families` once for each version of transformers.
"""
