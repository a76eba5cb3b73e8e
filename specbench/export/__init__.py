"""How do I serve it? A decision in, the flags of an engine out.

Open `winner.py` first, which picks what is served; `engines/` has one file per engine.
"""
