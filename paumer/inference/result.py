"""What the predictor gives: an image's labels, where the work went, and images of both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from paumer import drawing
from paumer.classes import ClassSet, Colour, paint
from paumer.mode import Mode

Pixels = UInt8[np.ndarray, "h w 3"]

_STOPS = ((20, 190, 255), (24, 70, 240), (60, 90, 180))  # Red, green and blue at 0, 128 and 255.
_GLOW = np.stack([np.interp(range(256), (0, 128, 255), stops) for stops in _STOPS], 1).astype("u1")
"""Colours from dark blue over red to pale yellow."""

_BLOCK_COLOURS = ((0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (240, 228, 66))


@dataclass(frozen=True)
class Segmentation:
    """An image's labels, and where the work went.

    ``paused_after`` gives for each patch the block after which it paused, 0 for never;
    ``entropy`` is that of the final prediction, in nats. A patch covers ``patch`` pixels down
    and across. Of several scales these are the first one's.
    """

    image: UInt8[np.ndarray, "_ _ 3"]
    labels: Int[np.ndarray, "h w"] | UInt8[np.ndarray, "h w"]
    entropy: Float[np.ndarray, "gh gw"]
    paused_after: UInt8[np.ndarray, "ph pw"]
    patch: tuple[float, float]
    mode: Mode
    seconds: float
    classes: ClassSet

    def __repr__(self) -> str:
        height, width = self.labels.shape
        return (
            f'Segmentation({width}x{height}, mode "{self.mode}", {1000 * self.seconds:.0f} ms, '
            f"{len(self.classes)} classes)"
        )

    def _repr_png_(self) -> bytes:
        """The overlay, by which a notebook shows the result."""
        return drawing.encode(self.overlay())

    def class_shares(self) -> dict[str, float]:
        """The share of the image that each class covers."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes.names))
        return dict(zip(self.classes.names, (counts / self.labels.size).tolist(), strict=False))

    def overlay(self, alpha: float = 0.5) -> Image.Image:
        """The image with its classes painted over it, and a legend."""
        colours, shares = self.classes.colours, self.class_shares().items()
        entries = [(*share, colour) for share, colour in zip(shares, colours, strict=True)]
        return drawing.with_legend(self.blended(alpha), [e for e in entries if e[1] > 0])

    def pause_map(self) -> Image.Image:
        """The image with each paused patch tinted by the block it paused after, and a legend."""
        blocks = (0, *self.mode.pause.blocks)
        names = ["all blocks (not tinted)", *(f"paused after block {b}" for b in blocks[1:])]
        shares = [float((self.paused_after == block).mean()) for block in blocks]
        colours = [None, *block_colours(len(blocks))[1:]]
        return drawing.with_legend(self.tinted(), list(zip(names, shares, colours, strict=True)))

    def tinted(self, alpha: float = 0.6, colours: Sequence[Colour] | None = None) -> Pixels:
        """The image with each paused patch tinted by the block it paused after.

        ``colours`` are one for patches that never pause, which is not used, and one for each pause.
        """
        numbers = np.searchsorted((0, *self.mode.pause.blocks), self.paused_after)
        rows, columns = (
            np.minimum(np.arange(side) / self.patch[axis], numbers.shape[axis] - 1).astype(int)
            for axis, side in enumerate(self.labels.shape)
        )
        large = numbers.astype(np.uint8)[rows][:, columns]
        palette = np.asarray(colours or block_colours(len(self.mode.pause.blocks) + 1), np.uint8)
        mixed = drawing.overlay(self.image, palette[large], alpha)
        mixed[large == 0] = self.image[large == 0]
        return mixed

    def blended(self, alpha: float = 0.5) -> Pixels:
        """The image with its classes painted over it."""
        return drawing.overlay(self.image, self.painted(), alpha)

    def painted(self) -> Pixels:
        """The labels in the colours of their classes."""
        return paint(self.labels, self.classes)

    def entropy_map(self) -> Pixels:
        """The image's entropy: dark where the network is sure, bright where it is not."""
        top = math.log(max(2, len(self.classes.names)))
        grid = Image.fromarray((255 * np.clip(self.entropy / top, 0, 1)).astype(np.uint8))
        large = np.asarray(grid.resize(self.labels.shape[::-1], Image.Resampling.BILINEAR))
        return _GLOW.take(large, 0)

    def save(
        self, directory: str | Path, stem: str, kinds: Sequence[str] = ("mask", "overlay", "paused")
    ) -> list[Path]:
        """Write an image file of each of some `KINDS`; the paths written."""
        check_kinds(kinds)
        paths = [Path(directory) / f"{stem}_{kind}.png" for kind in kinds]
        for kind, path in zip(kinds, paths, strict=True):
            drawing.write_image(path, KINDS[kind](self))
        return paths


KINDS: dict[str, Callable[[Segmentation], Image.Image | drawing.Picture]] = {
    "mask": lambda result: drawing.mask_image(result.labels, result.classes),
    "colour": Segmentation.painted,
    "overlay": Segmentation.overlay,
    "paused": Segmentation.pause_map,
    "entropy": Segmentation.entropy_map,
}
"""What can be written of a segmentation."""


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise unless all of these can be written of a segmentation."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f'cannot write "{unknown[0]}": choose from {", ".join(KINDS)}')


def block_colours(count: int) -> list[Colour]:
    """White for patches that never pause, then a colour for each pause."""
    return [(255, 255, 255), *(_BLOCK_COLOURS[i % len(_BLOCK_COLOURS)] for i in range(count - 1))]
