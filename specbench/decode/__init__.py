"""How are tokens decoded? A round as a device program, and the loop over many requests.

Requests go in; their tokens and the counts per round come out. Open `round.py` first: it
proposes, verifies, clips and commits, with fixed shapes, no host sync and no branches on data.
`drafter.py` is the protocol of drafters. `launcher.py` starts a round operation by operation,
`graphs.py` replays it as one captured graph. `serving.py` is the loop: `scheduler.py` assigns
requests to rows without tensors, `adaptive_k.py` chooses K from counts and seconds of earlier
rounds.
"""
