"""Random loaders live random lives; every batch is compared with an undisturbed run.

Read in this order: ``data``, ``orders`` and ``configurations`` (what a loader is), ``records`` and
``oracle`` (what it must deliver), ``lives`` and ``player`` (what happens to it), ``cases``.
docs/robustness.md says how to run it.
"""
