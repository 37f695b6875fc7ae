"""Tests of the device stage, on a device that the CPU plays."""
