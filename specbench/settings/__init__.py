"""What may a run be asked for, and with which words of the command line?

Open `words.py` first: it reads 0..8, 4k, 3m and 2%.
"""
