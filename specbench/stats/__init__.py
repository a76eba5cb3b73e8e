"""Intervals, validity and precision: how sure a measured number is."""
