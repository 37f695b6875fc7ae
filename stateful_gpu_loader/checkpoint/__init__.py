"""Checkpoints: the states of many objects in one file."""

from stateful_gpu_loader.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
