"""What happens in one round? Propose, verify, clip, commit, as one device program.

In go static buffers (`state.py`) and a drafter (`drafter.py` is the protocol), out come tokens
and counts. Fixed shapes, no host sync, no branch on data. Open `round.py` first.
"""
