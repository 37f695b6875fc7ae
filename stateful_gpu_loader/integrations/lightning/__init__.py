"""Lightning: a callback that keeps the loaders' states as the training loop has come to them."""

from stateful_gpu_loader.integrations.lightning.callback import LoaderStateCallback

__all__ = ["LoaderStateCallback"]
