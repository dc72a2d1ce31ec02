"""What a mode loses where images are not as expected: by group, and on shifted copies of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from paumer.data.samples import Dataset, Sample
from paumer.data.transforms import blurred, noisy
from paumer.mode import UNPAUSED, Mode
from paumer.study.accuracy import Tally

Planes = UInt8[Tensor, "3 h w"]

SHIFTS: Mapping[str, Callable[[Planes, int], Planes]] = {
    "darker": lambda image, _: T.adjust_brightness(image, 0.5),
    "noisier": lambda image, seed: noisy(image, 15.0, np.random.default_rng(seed)),
    "blurred": lambda image, _: blurred(image, 1.5),
    "compressed": lambda image, _: T.jpeg(image, 20),
}
"""Images as a worse camera, worse light or a narrow line would give them."""


class Shifted(Dataset):
    """A data set whose images are changed and whose labels stay."""

    def __init__(self, dataset: Dataset, shift: str) -> None:
        self.name = f"{dataset.name} {shift}"
        self.split = dataset.split
        self.class_set = dataset.class_set
        self.dataset, self.shift = dataset, shift

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        planes = torch.from_numpy(sample.image.copy()).movedim(-1, 0)
        changed = SHIFTS[self.shift](planes, index).movedim(0, -1)
        return sample._replace(image=np.ascontiguousarray(changed.numpy()))

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        return self.dataset.files(index)


def lost(tallies: Mapping[Mode, Tally], indices: Sequence[int] | None = None) -> dict[Mode, float]:
    """The mIoU that each mode loses against no pausing, on all images or on some of them."""
    parts = {
        mode: (tally if indices is None else tally.of_images(indices)).miou
        for mode, tally in tallies.items()
    }
    return {mode: parts[UNPAUSED] - miou for mode, miou in parts.items()}
