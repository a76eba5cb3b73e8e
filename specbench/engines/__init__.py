"""Who runs the work: one file an engine; the protocol is engine.py."""
