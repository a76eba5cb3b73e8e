"""Code that several methods share: draft models with another tokenizer, heads and their layers."""
