"""How many tokens would each drafter get accepted along a finished text? Texts in, traces out.

Open `trace.py` first; `text.py` has the texts, and what they accept of a proposal.
"""
