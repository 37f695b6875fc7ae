"""The device stage on a pretend GPU: torch's own allocator and streams, with CUDA on the CPU.

``runtime.cpp`` describes the pretend GPU. Each test of this folder runs in a separate process,
where that library is loaded before torch (``processes.py``).
"""
