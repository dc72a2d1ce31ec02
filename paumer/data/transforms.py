"""Training crops: scale, crop, flip and colour on an image and its labels together.

The recipe of Segmenter and mmsegmentation by torchvision's v2 functions. Every number is drawn from
the seed that comes with the image, so a crop is the same in any process, thread and order, and no
global random state is read or changed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as T

from paumer.classes import IGNORE
from paumer.data.samples import Sample

Rng = np.random.Generator
Three = tuple[float, float, float]


@dataclass(frozen=True)
class TrainTransform:
    """A random training crop of (height, width) `crop` from an image of any size.

    The image is scaled to fit `fit` (long side, short side; None: its own size) times a number
    drawn from `scale`. Of ten crops the first is taken in which no class fills more than `most` of
    the labelled pixels, or else the last.
    """

    crop: tuple[int, int]
    mean: Three = (0.5, 0.5, 0.5)
    std: Three = (0.5, 0.5, 0.5)
    fit: tuple[int, int] | None = None
    scale: tuple[float, float] = (0.5, 2.0)
    most: float = 0.75
    flip: float = 0.5
    colour: bool = True

    def __call__(
        self, sample: Sample, seed: int
    ) -> tuple[Float[Tensor, "3 h w"], Int[Tensor, "h w"]]:
        """The normalised crop and its labels, wholly decided by the sample and the seed."""
        height, width = sample.labels.shape
        if not height * width:
            raise ValueError(f'cannot crop "{sample.name}" of {width}x{height}: it has no pixels')
        rng = np.random.Generator(np.random.PCG64(seed))
        size = scaled_size(sample.labels.shape, self.fit, rng.uniform(*self.scale))
        part = [min(most, side) for most, side in zip(self.crop, size, strict=True)]
        # What of the image the crop shows: cutting first, then resizing, spares most of the work.
        box = self._choose_box(sample.labels, size, part, rng)
        pixels = torch.from_numpy(np.array(sample.image[box].transpose(2, 0, 1)))
        image = T.resize(pixels, part, InterpolationMode.BILINEAR, antialias=True)
        ids = torch.from_numpy(np.array(sample.labels[box]))[None]
        labels = T.resize(ids, part, InterpolationMode.NEAREST_EXACT)
        if self.colour:
            image = distort(image, rng)
        if rng.random() < self.flip:
            image, labels = T.horizontal_flip(image), T.horizontal_flip(labels)
        # Padded after normalising, so that the padding has the mean colour.
        padding = (0, self.crop[1] - part[1], 0, self.crop[0] - part[0])
        normal = F.pad(normalise(image, self.mean, self.std), padding)
        target = F.pad(labels[0].long(), padding, value=IGNORE)
        return normal, target

    def _choose_box(
        self, labels: NDArray[np.uint8], size: tuple[int, int], part: list[int], rng: Rng
    ) -> tuple[slice, slice]:
        """The rows and columns of the unscaled image that become the crop."""
        whole = labels.shape
        height, width = (max(1, round(part[i] * whole[i] / size[i])) for i in range(2))
        for _ in range(10):
            top = int(rng.integers(0, whole[0] - height + 1))
            left = int(rng.integers(0, whole[1] - width + 1))
            box = slice(top, top + height), slice(left, left + width)
            counts = np.bincount(labels[box].ravel(), minlength=256)
            counts[IGNORE] = 0
            if counts.any() and counts.max() <= self.most * counts.sum():
                break
        return box


def scaled_size(
    size: tuple[int, ...], fit: tuple[int, int] | None, ratio: float = 1.0
) -> tuple[int, int]:
    """The (height, width) an image is scaled to: it fits (long, short) times ratio, same shape."""
    height, width = size
    factor = ratio
    if fit is not None:
        long, short = int(fit[0] * ratio), int(fit[1] * ratio)
        factor = min(long / max(height, width), short / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def distort(image: UInt8[Tensor, "3 h w"], rng: Rng) -> UInt8[Tensor, "3 h w"]:
    """The image in other light: brightness, contrast, saturation and hue, each half the time.

    Brightness adds up to 32 of 255, contrast multiplies by 0.5 to 1.5, saturation likewise, hue
    turns by up to a tenth of the circle. Contrast comes before the last two or after them.
    """
    bright, contrast, saturate, turn, early = (rng.random(5) < 0.5).tolist()
    shift, gain, depth, hue = rng.uniform((-32, 0.5, 0.5, -0.1), (32, 1.5, 1.5, 0.1)).tolist()
    if bright:
        image = (image.to(torch.int16) + round(shift)).clamp_(0, 255).to(torch.uint8)
    changes = [(saturate, T.adjust_saturation, depth), (turn, T.adjust_hue, hue)]
    # Contrast is a plain factor, which torchvision calls brightness.
    changes.insert(0 if early else 2, (contrast, T.adjust_brightness, gain))
    for wanted, change, amount in changes:
        image = change(image, amount) if wanted else image
    return image


def normalise(
    images: UInt8[Tensor, "*b 3 h w"] | NDArray[np.uint8], mean: Three, std: Three
) -> Float[Tensor, "*b 3 h w"]:
    """What the network reads: (image / 255 - mean) / std, channels first.

    Tensors have the channels first already, arrays have them last. The only place where images
    are normalised.
    """
    if isinstance(images, np.ndarray):
        if min(images.strides) < 0 or not images.flags.writeable:  # torch cannot look at these
            images = images.copy()
        images = torch.from_numpy(images).movedim(-1, -3)
    if 0 in images.shape[-2:]:
        raise ValueError(f"cannot normalise images of shape {tuple(images.shape)}: no pixels")
    if images.dtype != torch.uint8 or images.shape[-3] != 3:
        raise ValueError(
            f"cannot normalise {images.dtype} of shape {tuple(images.shape)}: give uint8 RGB, "
            f"a tensor (..., 3, h, w) or an array (..., h, w, 3)"
        )
    scale = 1 / (255 * torch.tensor(std, device=images.device))
    shift = torch.tensor(mean, device=images.device) / torch.tensor(std, device=images.device)
    pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.mul_(scale[:, None, None]).sub_(shift[:, None, None])
