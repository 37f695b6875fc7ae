"""Tests of the device stage, on a device simulated by the CPU."""
