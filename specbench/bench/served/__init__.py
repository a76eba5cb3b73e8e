"""Measures serving engines in sessions, one after the other; no torch.

In: a target's plan, and running servers or their commands. Out: blocks of requests and one
ServerRecord per session. Open `sessions.py` first: the sessions and their order; `cycles.py`
decides and measures their cycles, `open_session.py` serves the blocks of a session.
"""
