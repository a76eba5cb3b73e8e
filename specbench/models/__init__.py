"""How does a model get into memory? Folders and hub ids in, loaded weights and tokenizers out.

Nothing is unpickled and no remote code runs unless it is asked for by name. Open `loading.py`
first, then `weights.py`: the device of each weight as it is read. `files/` is what the files say
before this.
"""
