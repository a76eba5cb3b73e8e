"""Drafters: cheap guesses of the next tokens, one file per method, marked `@drafter("name")`.

Input: a round's state. Output: drafts. The protocol is decode/drafter.py, and `shared/` has code
that several methods use. Open `ngram.py` first, the smallest.
"""
