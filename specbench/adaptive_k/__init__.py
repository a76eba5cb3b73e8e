"""Which K next? Counts of earlier rounds and their seconds in, one K for the next round out.

Open `controller.py` first; `calibration.py` measures what a round costs at each K.
"""
