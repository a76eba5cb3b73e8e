"""What does the machine say beside a measurement? NVML, the torch allocator, the host.

Bytes, watts, clocks and the environment come out. Open `probe.py` first.
"""
