"""Parts that several methods share: draft models, heads over states, and their layers."""
