"""Recipes: image transforms with the names and arguments of ``torchvision.transforms.v2``.

A recipe draws numbers for a whole batch from the samples' keys, before it makes pixels. So a
resumed run makes the same pixels.

The modules import torchvision inside functions, because its import takes longer than torch's.
"""

from stateful_gpu_loader.transforms.auto_augment import AugMix, AutoAugment
from stateful_gpu_loader.transforms.choices import RandomApply, RandomChoice, RandomOrder
from stateful_gpu_loader.transforms.color.blur import GaussianBlur
from stateful_gpu_loader.transforms.color.erasing import RandomErasing
from stateful_gpu_loader.transforms.color.jitter import ColorJitter, RandomGrayscale
from stateful_gpu_loader.transforms.color.jpeg import JPEG
from stateful_gpu_loader.transforms.color.photometric import RandomPhotometricDistort
from stateful_gpu_loader.transforms.color.tones import (
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from stateful_gpu_loader.transforms.compose import Compose, PipelineDraw
from stateful_gpu_loader.transforms.conversion import from_torchvision
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine, RandomRotation
from stateful_gpu_loader.transforms.geometry.crops import CenterCrop, RandomCrop, RandomResizedCrop
from stateful_gpu_loader.transforms.geometry.flips import RandomHorizontalFlip, RandomVerticalFlip
from stateful_gpu_loader.transforms.geometry.pads import Pad, RandomZoomOut
from stateful_gpu_loader.transforms.geometry.perspective import RandomPerspective
from stateful_gpu_loader.transforms.geometry.random_sizes import (
    RandomResize,
    RandomShortestSize,
    ScaleJitter,
)
from stateful_gpu_loader.transforms.geometry.resize import Resize
from stateful_gpu_loader.transforms.mixing import CutMix, MixUp
from stateful_gpu_loader.transforms.policies import RandAugment, TrivialAugmentWide
from stateful_gpu_loader.transforms.recipe import BatchRecipe, Draw, Recipe
from stateful_gpu_loader.transforms.values import Normalize, ToDtype, ToMemoryFormat

__all__ = [
    "JPEG",
    "AugMix",
    "AutoAugment",
    "BatchRecipe",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Draw",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "PipelineDraw",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Recipe",
    "Resize",
    "ScaleJitter",
    "ToDtype",
    "ToMemoryFormat",
    "TrivialAugmentWide",
    "from_torchvision",
]
