"""What the machine says beside a measurement: NVML, the torch allocator, the host."""
