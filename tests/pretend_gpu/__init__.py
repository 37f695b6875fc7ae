"""The device stage on a pretend GPU: torch's own allocator and streams, on a CUDA of the CPU's.

``runtime.cpp`` says what the pretend GPU does and what it does not. Each test of this folder runs
in a process of its own, where that library is loaded before torch (``processes.py``).
"""
