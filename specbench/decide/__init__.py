"""Which draft, which K, or none, and why? Summaries of cells in, one decision per question out.

Open `recommend.py` first: the rule. `objective.py` and `compromise.py` weigh several workloads,
`why.py` explains.
"""
