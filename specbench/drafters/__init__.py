"""Drafters: cheap guesses of the next tokens, one file per method, marked `@drafter("name")`.

A round's state goes in and drafts come out; the protocol is decode/drafter.py. `shared/` has the
parts that several of them use. Open `ngram.py` first, the smallest.
"""
