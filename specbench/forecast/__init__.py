"""Which K are worth measuring? Traces and step times in, forecast speedups out.

Open `forecast.py` first: it replays the rounds of every K along a trace. `cost_curve.py` has what a
round costs, and `engine_costs.py` reads the step times of other engines.
"""
