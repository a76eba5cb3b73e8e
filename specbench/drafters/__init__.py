"""Drafters guess the next tokens cheaply; each method is one file, marked `@drafter("name")`.

A drafter gets the state of a round and returns draft tokens. The protocol is in decode/drafter.py,
and `shared/` has code that several methods use. Open `ngram.py` first; it is the smallest.
"""
