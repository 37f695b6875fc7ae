"""DALI's dynamic mode: readers whose interrupted epoch resumes with its remainder only."""

from stateful_gpu_loader.integrations.dali_dynamic.reader import StatefulReader

__all__ = ["StatefulReader"]
