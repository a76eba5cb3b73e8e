"""Traces how many draft tokens each drafter would get accepted along finished texts.

`trace.py` has the texts, the matches of proposals with them, and the records.
"""
