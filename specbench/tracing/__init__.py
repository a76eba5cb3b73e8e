"""Traces the tokens that each drafter would get accepted along finished texts.

`trace.py` has the texts, what they accept of a proposal, and the records.
"""
