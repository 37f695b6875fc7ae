"""Tests of DALI's dynamic mode, which test_dali_dynamic.py runs in a separate process."""
