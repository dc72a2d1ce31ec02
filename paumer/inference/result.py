"""What the predictor gives: an image's labels, where the work went, and images of both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from paumer import drawing
from paumer.arguments import checked
from paumer.classes import ClassSet, Colour, paint
from paumer.inference.outlines import Ring, outlines, run_lengths
from paumer.inference.tiles import Answer, full_probabilities
from paumer.mode import Mode

CocoEntry = dict[str, object]
"""An image, an annotation or a category of a COCO file."""

Pixels = UInt8[np.ndarray, "h w 3"]

_STOPS = ((20, 190, 255), (24, 70, 240), (60, 90, 180))  # Red, green and blue at 0, 128 and 255.
_GLOW = np.stack([np.interp(range(256), (0, 128, 255), stops) for stops in _STOPS], 1).astype("u1")
"""Colours from dark blue over red to pale yellow."""

_DARK, _LIGHT = (38, 40, 44), (235, 235, 230)  # Stripes of merged patches.
_BLOCK_COLOURS = ((0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (240, 228, 66))


@dataclass(frozen=True, eq=False)
class Segmentation:
    """An image's labels, and where the work went.

    ``paused_after`` gives for each patch the block after which it paused, 0 for never,
    ``merged_after`` the one after which it became part of a similar patch, with which it may have
    paused later. ``entropy`` is that of the final prediction, in nats. A patch covers ``patch``
    pixels down and across. Of several scales these are the first one's.
    """

    image: UInt8[np.ndarray, "_ _ 3"]
    labels: Int[np.ndarray, "h w"] | UInt8[np.ndarray, "h w"]
    entropy: Float[np.ndarray, "gh gw"]
    paused_after: UInt8[np.ndarray, "ph pw"]
    merged_after: UInt8[np.ndarray, "ph pw"]
    patch: tuple[float, float]
    mode: Mode
    seconds: float
    classes: ClassSet
    answers: Sequence[Answer] = ()
    """The logits of every pass, of which probabilities are made."""

    def __repr__(self) -> str:
        height, width = self.labels.shape
        return (
            f'Segmentation({width}x{height}, mode "{self.mode}", {1000 * self.seconds:.0f} ms, '
            f"{len(self.classes)} classes)"
        )

    def _repr_png_(self) -> bytes:
        """The overlay, by which a notebook shows the result."""
        return drawing.encode(self.overlay())

    def class_ratios(self) -> dict[str, float]:
        """What ratio of the image each class covers."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes.names))
        return dict(zip(self.classes.names, (counts / self.labels.size).tolist(), strict=False))

    @checked
    def probabilities(self, full_size: bool = True) -> Float[np.ndarray, "classes _h _w"]:
        """The probability of each class at each pixel, or at each cell of the coarse grid.

        At full size that is four bytes for each class and pixel, and of several scales their mean;
        on the coarse grid, that of ``entropy``, it is the first one's.
        """
        if not self.answers:
            raise ValueError("this segmentation was made without probabilities: predict gives them")
        if not full_size:
            return self.answers[0].probabilities().numpy()
        return full_probabilities([answer.enlarge() for answer in self.answers]).numpy()

    def polygons(self) -> dict[str, list[Ring]]:
        """The outlines of each class in the image, as corners (x, y): exact to the pixel.

        Outer rings run clockwise and those of holes the other way.
        """
        return {name: outlines(self.labels == label) for label, name in self._present()}

    @checked
    def to_coco(self, file_name: str = "", image_id: int = 1) -> dict[str, list[CocoEntry]]:
        """The labels as the content of a COCO file: a mask in runs for each class in the image.

        The category of a class is its label plus one. Those of several images are joined by their
        annotations; give each image its own ``image_id``.
        """
        height, width = self.labels.shape
        annotations: list[CocoEntry] = []
        for label, _ in self._present():
            mask = self.labels == label
            rows, columns = (np.flatnonzero(mask.any(axis)).tolist() for axis in (1, 0))
            box = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
            annotations.append(
                {
                    "id": image_id * 100_000 + label + 1,
                    "image_id": image_id,
                    "category_id": label + 1,
                    "segmentation": {"size": [height, width], "counts": run_lengths(mask)},
                    "area": int(mask.sum()),
                    "bbox": box,
                    "iscrowd": 0,
                }
            )
        image = {"id": image_id, "file_name": file_name, "width": width, "height": height}
        names = enumerate(self.classes.names, 1)
        categories: list[CocoEntry] = [{"id": number, "name": name} for number, name in names]
        return {"images": [image], "annotations": annotations, "categories": categories}

    def _present(self) -> list[tuple[int, str]]:
        """The labels in the image that stand for a class, and its name."""
        found = np.unique(self.labels).tolist()
        return [(label, self.classes.names[label]) for label in found if label < len(self.classes)]

    @checked
    def overlay(self, alpha: float = 0.5) -> Image.Image:
        """The image with its classes painted over it, and a legend."""
        colours, ratios = self.classes.colours, self.class_ratios().items()
        entries = [(*ratio, colour) for ratio, colour in zip(ratios, colours, strict=True)]
        return drawing.with_legend(self.blended(alpha), [e for e in entries if e[1] > 0])

    def pause_map(self) -> Image.Image:
        """The image with each paused patch tinted by its block, merged ones striped; a legend."""
        blocks = (0, *self.mode.pause.blocks)
        names = ["all blocks (not tinted)", *(f"paused after block {b}" for b in blocks[1:])]
        shares = [float((self.paused_after == block).mean()) for block in blocks]
        colours = [None, *block_colours(len(blocks))[1:]]
        entries = list(zip(names, shares, colours, strict=True))
        if self.mode.merge:
            share = float((self.merged_after > 0).mean())
            entries.append(("merged into a similar patch (striped)", share, _DARK))
        return drawing.with_legend(self.tinted(), entries)

    @checked
    def tinted(self, alpha: float = 0.6, colours: Sequence[Colour] | None = None) -> Pixels:
        """The image with each paused patch tinted by the block it paused after.

        Patches that became part of another one are striped. ``colours`` are one for patches that
        never pause, which is not used, and one for each pause.
        """
        numbers = np.searchsorted((0, *self.mode.pause.blocks), self.paused_after)
        large = self._enlarged(numbers.astype(np.uint8))
        palette = np.asarray(colours or block_colours(len(self.mode.pause.blocks) + 1), np.uint8)
        mixed = drawing.overlay(self.image, palette[large], alpha)
        mixed[large == 0] = self.image[large == 0]
        if self.merged_after.any():
            width = max(1, round(min(self.patch) / 10))
            down, across = (np.arange(side) // width for side in self.labels.shape)
            stripe, merged = (down[:, None] + across) % 6, self._enlarged(self.merged_after) > 0
            for number, colour in enumerate((_DARK, _LIGHT)):  # One is seen on any ground.
                mixed[merged & (stripe == number)] = colour
        return mixed

    def _enlarged(self, grid: UInt8[np.ndarray, "ph pw"]) -> UInt8[np.ndarray, "h w"]:
        """Each pixel with the value of its patch."""
        rows, columns = (
            np.minimum(np.arange(side) / self.patch[axis], grid.shape[axis] - 1).astype(int)
            for axis, side in enumerate(self.labels.shape)
        )
        large: UInt8[np.ndarray, "h w"] = grid[rows][:, columns]
        return large

    @checked
    def blended(self, alpha: float = 0.5) -> Pixels:
        """The image with its classes painted over it."""
        return drawing.overlay(self.image, self.painted(), alpha)

    def painted(self) -> Pixels:
        """The labels in the colours of their classes."""
        return paint(self.labels, self.classes)

    @checked
    def entropy_map(self, full_size: bool = True) -> Pixels:
        """The image's entropy: dark where the network is sure, bright where it is not.

        At the size of the image, or one pixel for each cell of the coarse grid.
        """
        top = math.log(max(2, len(self.classes.names)))
        grid = Image.fromarray((255 * np.clip(self.entropy / top, 0, 1)).astype(np.uint8))
        if full_size:
            grid = grid.resize(self.labels.shape[::-1], Image.Resampling.BILINEAR)
        return _GLOW.take(np.asarray(grid), 0)

    @checked
    def save(
        self, directory: str | Path, stem: str, kinds: Sequence[str] = ("mask", "overlay", "paused")
    ) -> list[Path]:
        """Write an image file of each of some `KINDS`; the paths written."""
        check_kinds(kinds)
        paths = [Path(directory) / f"{stem}_{kind}.png" for kind in kinds]
        for kind, path in zip(kinds, paths, strict=True):
            drawing.write_image(path, KINDS[kind](self))
        return paths


KINDS: dict[str, Callable[[Segmentation], Image.Image | Pixels]] = {
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
