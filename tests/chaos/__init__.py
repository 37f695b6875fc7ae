"""A training-like job is killed, stopped and hindered, and its stream stays that of a calm run.

Read in this order: ``streams`` (what the loaders deliver), ``job`` (the program that iterates one),
``supervisor`` (what is done to it), ``verdict`` (what must come of it). docs/robustness.md says how
to run it.
"""
