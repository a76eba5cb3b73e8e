"""Which model families does the decoder run? Asked of every decoder in transformers' registry.

`registry.py` makes a tiny model of each, `proof.py` says what becomes of it. `make families` asks
two versions of transformers and writes specbench/families.json, which `specbench list families`
prints.
"""
