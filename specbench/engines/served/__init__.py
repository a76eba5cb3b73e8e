"""Serving engines, each unmodified and in one file; ../served_engine.py has what they share."""
