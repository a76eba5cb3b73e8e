"""Who decodes? One file per engine takes requests and returns tokens, seconds and counts.

Open `engine.py` first: it has the protocol, without torch. `builtin.py` runs our own decoder.
"""
