"""Readers of DALI's dynamic mode that resume an interrupted epoch with its remainder only."""

from stateful_gpu_loader.integrations.dali_dynamic.reader import StatefulReader

__all__ = ["StatefulReader"]
