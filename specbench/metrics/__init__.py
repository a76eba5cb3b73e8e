"""What does a run say? Records in, one number per metric out, with unit, direction and formula.

A metric is one decorated pure function, a new one is one file; `registry.py` has them all and
`cell.py` what they read.
"""
