"""How does a model come into memory? Folders and hub ids in, loaded weights and tokenizers out.

Nothing is unpickled and no remote code runs unless it is asked for by name. Open `loading.py`
first, then `weights.py`: where each weight goes when it is read. `files/` is what the files
say before this.
"""
