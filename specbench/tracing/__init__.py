"""Traces the tokens that each drafter would get accepted along finished texts.

Open `trace.py` first; `text.py` has the texts, and what they accept of a proposal.
"""
