"""Loads models: folders and hub ids in, loaded weights and tokenizers out.

Nothing is unpickled, and no remote code runs unless it is explicitly allowed. Open `loading.py`
first, then `weights.py`: the device of each weight as it is read. `files/` reads the files' facts
before a model is loaded.
"""
