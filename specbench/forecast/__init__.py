"""Which K are worth measuring? Traces and step times in, forecast speedups out.

Open `forecast.py` first; `replay.py` counts the rounds of every K along a trace and
`engine_costs.py` reads the step times of other engines.
"""
