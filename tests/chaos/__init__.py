"""A job like a training is killed, stopped and hindered; its stream equals that of a calm run.

Read in this order: ``streams`` (what the loaders deliver), ``job`` (the program that iterates one),
``supervisor`` (the disturbances), ``verdict`` (the comparison). docs/robustness.md says how to run
it.
"""
