"""Decodes requests: a round as a device program, and the loop over many requests.

The results are tokens and the counts of each round. Start with `round.py`: it proposes, verifies,
clips and commits, with fixed shapes, no host sync and no branches on data.
`drafter.py` is the protocol of drafters. `launcher.py` starts rounds operation by operation,
`graphs.py` replays them as captured graphs. `serving.py` is the loop: `scheduler.py` assigns
requests to rows without tensors, and `adaptive_k.py` chooses K from the counts and seconds of
earlier rounds.
"""
