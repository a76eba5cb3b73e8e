"""How is a server started, queried and stopped? HTTP, streams, counter pages; no torch.

In: an address and requests, or a command that starts a server. Out: the times at which tokens
arrived, and the server's counters. Open `client.py` first, `process.py` for servers that specbench
starts. Only the given address is contacted.
"""
