"""Facts about the machine during a measurement, from NVML, the torch allocator and the host.

The results are bytes, watts, clocks and the environment. Open `gpu.py` first.
"""
