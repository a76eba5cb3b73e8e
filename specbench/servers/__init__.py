"""How is a server started, asked and stopped? HTTP, streams, counter pages, processes; no torch.

In: an address and what to ask, or a command that starts a server. Out: when each answer's tokens
came, and what the server counted. Open `client.py` first, `process.py` for servers of our own.
Nothing but the given address is ever contacted.
"""
