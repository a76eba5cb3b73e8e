"""The decoder: models over slots, one verifier, one round."""
