"""Schedules yield the requests of a pass and keep its position after each delivery."""
