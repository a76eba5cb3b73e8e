"""Which target and draft go together, and whether speculating with them pays."""
