"""Which deployment did a run find best? Decisions in, a pairing with K for each batch size out."""
