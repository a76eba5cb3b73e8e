"""Facts about the machine during a measurement, from NVML, the torch allocator and the host.

Bytes, watts, clocks and the environment come out. Open `gpu.py` first.
"""
