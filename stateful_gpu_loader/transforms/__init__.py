"""Recipes: image transforms under the names and arguments of ``torchvision.transforms.v2``.

Each draws its numbers for a whole batch from the samples' keys, apart from the pixels, so that a
resumed run crops, flips and colors every image as the uninterrupted one did.
"""

from stateful_gpu_loader.transforms.cast import ToDtype
from stateful_gpu_loader.transforms.color import ColorJitter, RandomGrayscale
from stateful_gpu_loader.transforms.compose import Compose, PipelineDraw
from stateful_gpu_loader.transforms.crops import CenterCrop, RandomCrop
from stateful_gpu_loader.transforms.flips import RandomHorizontalFlip, RandomVerticalFlip
from stateful_gpu_loader.transforms.normalize import Normalize
from stateful_gpu_loader.transforms.random_resized_crop import RandomResizedCrop
from stateful_gpu_loader.transforms.recipe import Draw, Recipe
from stateful_gpu_loader.transforms.resize import Resize
from stateful_gpu_loader.transforms.rotation import RandomRotation

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Draw",
    "Normalize",
    "PipelineDraw",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Recipe",
    "Resize",
    "ToDtype",
]
