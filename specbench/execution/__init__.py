"""How is a round started? Operation by operation, as one captured graph, or compiled.

In goes the program of `round/`, out come its reports, a round late on a GPU. Open `launcher.py`
first; `graphs.py` captures and replays.
"""
