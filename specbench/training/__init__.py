"""Trains a draft head on what its target itself says: texts, losses, acceptance, files."""
