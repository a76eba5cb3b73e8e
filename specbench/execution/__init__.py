"""How is a round started? Operation by operation, or as one captured graph.

In goes the program of `round/`, out come its reports, a round late on a GPU. Open `launcher.py`
first; `graphs.py` captures and replays.
"""
