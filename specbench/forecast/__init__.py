"""Forecasts of speedups from traces and step times, to choose the K to measure.

Read `forecast.py` first: it replays the rounds of every K along a trace. `cost_curve.py` has the
cost of a round, and `engine_costs.py` reads the step times of other engines.
"""
