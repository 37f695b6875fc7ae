"""from_torchvision on objects that hold a transform and call it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torchvision.transforms import v2

from stateful_gpu_loader import UnsupportedTransform
from stateful_gpu_loader import transforms as T


class Preset:
    """A preset like those of torchvision's references."""

    def __init__(self) -> None:
        self.transforms = v2.Compose([v2.CenterCrop(8), v2.PILToTensor()])

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class Holding:
    """Base of objects that call their transform, and sometimes more."""

    def __init__(self) -> None:
        self.transform = v2.PILToTensor()


def test_an_object_that_only_calls_its_transform_is_seen_through() -> None:
    """It is called with a stand-in, so that its attributes survive."""
    preset = Preset()
    before = preset.transforms
    assert T.from_torchvision(preset).fingerprint() == T.from_torchvision(before).fingerprint()
    assert preset.transforms is before


class Branching(Holding):
    def __call__(self, image: Any) -> Any:
        made = self.transform(image)
        return 255 - made if isinstance(made, Tensor) else made


class Catching(Holding):
    def __call__(self, image: Any) -> Any:
        try:
            return self.transform(image)
        except TypeError:
            return image


class Calling(Holding):
    def more(self, image: Any) -> Any:
        return 255 - image if isinstance(image, Tensor) else image

    def __call__(self, image: Any) -> Any:
        return self.more(self.transform(image))


class BranchingModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform = v2.PILToTensor()

    def forward(self, image: Any) -> Any:
        return self.transform(image) if self.training or image is None else image


@pytest.mark.parametrize("kind", [Branching, Catching, Calling, BranchingModule])
def test_an_object_whose_call_may_do_more_is_refused(kind: Any) -> None:
    """The stand-in that it is called with would not show it."""
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(kind())
    assert [part.place for part in caught.value.refused] == ["transform"]
