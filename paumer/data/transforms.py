"""Training crops: scale, crop, flip, colour and damage on an image and its labels together.

The recipe of Segmenter and mmsegmentation by torchvision's v2 functions. Every number is drawn from
the seed that comes with the image, so a crop is the same in any process, thread and order, and no
global random state is read or changed.
"""

import math
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
    the labelled pixels, or else the last. With the probability `balance` it is centred instead on a
    pixel of a class drawn from those in the image, so that rare ones come as often as common ones.

    `colour` is the strength of `distort`; `blur`, `compress` and `cutout` are probabilities, and
    `noise` is the largest standard deviation of the noise that is added, as a part of the range.
    """

    crop: tuple[int, int]
    mean: Three = (0.5, 0.5, 0.5)
    std: Three = (0.5, 0.5, 0.5)
    fit: tuple[int, int] | None = None
    scale: tuple[float, float] = (0.5, 2.0)
    most: float = 0.75
    flip: float = 0.5
    colour: float = 1.0
    blur: float = 0.0
    noise: float = 0.0
    compress: float = 0.0
    cutout: float = 0.0
    balance: float = 0.0

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
            image = distort(image, rng, self.colour)
        if rng.random() < self.flip:
            image, labels = T.horizontal_flip(image), T.horizontal_flip(labels)
        image, labels = self._damage(image, labels, rng)
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
        centre = pixel_of_any_class(labels, rng) if self._happens(self.balance, rng) else None
        if centre is not None:
            top = min(max(0, centre[0] - height // 2), whole[0] - height)
            left = min(max(0, centre[1] - width // 2), whole[1] - width)
            return slice(top, top + height), slice(left, left + width)
        for _ in range(10):
            top = int(rng.integers(0, whole[0] - height + 1))
            left = int(rng.integers(0, whole[1] - width + 1))
            box = slice(top, top + height), slice(left, left + width)
            counts = np.bincount(labels[box].ravel(), minlength=256)
            counts[IGNORE] = 0
            if counts.any() and counts.max() <= self.most * counts.sum():
                break
        return box

    def _damage(
        self, image: UInt8[Tensor, "3 h w"], labels: UInt8[Tensor, "1 h w"], rng: Rng
    ) -> tuple[UInt8[Tensor, "3 h w"], UInt8[Tensor, "1 h w"]]:
        """The image as a worse camera would have taken it, and with a part hidden."""
        if self._happens(self.blur, rng):
            image = blurred(image, rng.uniform(0.1, 2.0))
        if self.noise:
            image = noisy(image, 255 * self.noise * rng.random(), rng)
        if self._happens(self.compress, rng):
            image = T.jpeg(image, int(rng.integers(30, 96)))
        if self._happens(self.cutout, rng):
            fill = torch.tensor([round(255 * mean) for mean in self.mean], dtype=torch.uint8)
            sides = [max(1, round(side * rng.uniform(0.1, 0.4))) for side in image.shape[1:]]
            pairs = zip(image.shape[1:], sides, strict=True)
            corner = [int(rng.integers(0, whole - side + 1)) for whole, side in pairs]
            image = T.erase(image, *corner, *sides, fill[:, None, None])
            # Nothing is learnt from what cannot be seen.
            labels = T.erase(labels, *corner, *sides, torch.tensor(IGNORE, dtype=torch.uint8))
        return image, labels

    @staticmethod
    def _happens(probability: float, rng: Rng) -> bool:
        """A draw, unless it never happens: what is off draws nothing and changes no other draw."""
        return probability > 0 and rng.random() < probability


def pixel_of_any_class(labels: NDArray[np.uint8], rng: Rng) -> tuple[int, int] | None:
    """The row and column of a pixel: first a class of those there are is drawn, then its pixel."""
    counts = np.bincount(labels.ravel(), minlength=256)
    counts[IGNORE] = 0
    present = np.flatnonzero(counts)
    if not present.size:
        return None
    pixels = np.flatnonzero(labels == present[rng.integers(present.size)])
    row, column = divmod(int(pixels[rng.integers(pixels.size)]), labels.shape[1])
    return row, column


def blurred(image: UInt8[Tensor, "3 h w"], sigma: float) -> UInt8[Tensor, "3 h w"]:
    """The image out of focus, by a Gaussian of that standard deviation in pixels."""
    # The kernel reaches over three deviations, but not beyond what a small image can reflect.
    reach = min(math.ceil(3 * sigma), min(image.shape[1:]) - 1)
    result: Tensor = T.gaussian_blur(image, [2 * reach + 1] * 2, [sigma] * 2)
    return result


def noisy(image: UInt8[Tensor, "3 h w"], deviation: float, rng: Rng) -> UInt8[Tensor, "3 h w"]:
    """The image with Gaussian noise of that standard deviation, in steps of 255."""
    # Not by torchvision, which draws from the global random state.
    noise = torch.from_numpy(rng.standard_normal(image.shape, np.float32))
    return (image + deviation * noise).round_().clamp_(0, 255).to(torch.uint8)


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


def distort(
    image: UInt8[Tensor, "3 h w"], rng: Rng, strength: float = 1.0
) -> UInt8[Tensor, "3 h w"]:
    """The image in other light: brightness, contrast, saturation and hue, each half the time.

    Brightness adds up to 32 of 255, contrast multiplies by 0.5 to 1.5, saturation likewise, hue
    turns by up to a tenth of the circle, all times ``strength``. Contrast comes before the last two
    or after them.
    """
    bright, contrast, saturate, turn, early = (rng.random(5) < 0.5).tolist()
    most, usual = strength * np.array((32, 0.5, 0.5, 0.1)), np.array((0, 1, 1, 0))
    shift, gain, depth, hue = rng.uniform(usual - most, usual + most).tolist()
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
