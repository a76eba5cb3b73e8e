"""Drafting methods, one file each; the protocol is decoding/drafter.py."""
