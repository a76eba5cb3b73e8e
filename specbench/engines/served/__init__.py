"""Serving engines, driven as they are: one file per engine; ../served_engine.py is the base."""
