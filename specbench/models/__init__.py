"""Loads the weights and tokenizers of models from folders and hub ids.

No code from a pickle runs, and remote code only if it is explicitly allowed. Start with
`loading.py`, then `weights.py`, which moves each weight to its device as it is read. `files/` reads
facts from the files before a model is loaded.
"""
