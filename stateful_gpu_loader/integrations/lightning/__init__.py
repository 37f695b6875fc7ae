"""Lightning: a callback that saves and restores the loaders' states at the training's progress."""

from stateful_gpu_loader.integrations.lightning.callback import LoaderStateCallback

__all__ = ["LoaderStateCallback"]
