"""What a model's files say before anything is loaded: no torch, no pickle, no foreign code."""
