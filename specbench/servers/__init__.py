"""How is a running server asked? HTTP, streams of tokens and counter pages; no torch.

In: an address and what to ask. Out: when each answer's tokens came, and what the server counted.
Open `client.py` first. Nothing but the given address is ever contacted.
"""
