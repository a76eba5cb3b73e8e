"""Decisions: which drafter, which K, or none, from the summaries of cells.

Read `recommend.py` first: it has the rule. `objective.py` weighs several workloads,
`explanation.py` has the reasons.
"""
