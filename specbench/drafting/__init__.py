"""How far ahead a method drafts, and in which tree: by its parameters and its head's files alone.

In go parameters of pairings.yaml, a head's config and the shapes of its tensors; out come the
deepest K (`depth.py`, open it first) and trees (`topology.py`). No torch: a plan is made from it
before anything is loaded, and the drafters compute their limits by the same functions.
"""
