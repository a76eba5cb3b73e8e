"""Whether a drafter fits a target, and whether both fit into memory: findings and bytes.

No weights are loaded: only headers, configs and tokenizers are read. Open `compatibility.py` or
`memory_plan.py` first.
"""
