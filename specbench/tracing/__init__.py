"""One pass along a target's finished text that says how far every round would get."""
