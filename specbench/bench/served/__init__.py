"""How are serving engines measured? In sessions, one after the other; no torch.

In: a target's plan, and servers that run or how to start them. Out: blocks of requests and one
ServerRecord per session. Open `sessions.py` first: what a session is, and their order;
`served_run.py` decides which cycles there are, `cycle.py` measures one, `open_session.py` is a
server that serves blocks.
"""
