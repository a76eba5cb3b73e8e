"""Who decodes? One file per engine: requests in, tokens, seconds and counts out.

Open `engine.py` first, the protocol (no torch); `builtin.py` is our own decoder.
"""
