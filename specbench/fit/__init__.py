"""Does this draft fit this target, and into this memory? Files in, findings and bytes out.

Nothing is loaded: headers, configs and tokenizers answer. Open `compatibility.py` or
`memory_plan.py` first.
"""
