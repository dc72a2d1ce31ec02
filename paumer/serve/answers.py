"""A segmentation as the bytes of an answer."""

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from safetensors.numpy import load, save

from paumer.classes import ClassSet, Pixels
from paumer.drawing import encode as encode_image
from paumer.drawing import mask_image
from paumer.inference.result import Segmentation, block_colours
from paumer.mode import Mode

PNG, JSON, BYTES = "image/png", "application/json", "application/octet-stream"
OUTPUTS = ("mask", "overlay", "rle", "arrays", "all")
"""What a client may choose; all of it at once comes as JSON."""
PRIORITIES = ("low", "normal", "high")
"""Who is refused first where not all can be in time."""

_ARRAYS = ("labels", "entropy", "paused_after", "merged_after")

png = partial(encode_image, compress_level=1)
"""The image as PNG, packed fast rather than small."""


def encode(result: Segmentation, output: str) -> tuple[bytes, str]:
    """One output, and its media type: a palette PNG, the image under its classes, or runs."""
    if output == "arrays":
        return pack(result), BYTES
    if output == "rle":
        return json.dumps(run_lengths(result), separators=(",", ":")).encode(), JSON
    mask = output == "mask"
    return png(mask_image(result.labels, result.classes) if mask else result.blended()), PNG


def pack(result: Segmentation) -> bytes:
    """What was found, as arrays in a safetensors file whose metadata say how: see `unpack`."""
    how = {
        "mode": str(result.mode),
        "patch": result.patch,
        "seconds": result.seconds,
        "names": result.classes.names,
        "colours": result.classes.colours,
    }
    arrays = {name: np.ascontiguousarray(getattr(result, name)) for name in _ARRAYS}
    return save(arrays, {"segmentation": json.dumps(how)})


def unpack(content: bytes, image: Pixels) -> Segmentation:
    """The segmentation of an image that `pack` made bytes of."""
    length = int.from_bytes(content[:8], "little")
    how = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["segmentation"])
    classes = ClassSet(tuple(how["names"]), tuple(tuple(colour) for colour in how["colours"]))
    labels, entropy, paused_after, merged_after = (load(content)[name] for name in _ARRAYS)
    return Segmentation(
        image=image,
        labels=labels,
        entropy=entropy,
        paused_after=paused_after,
        merged_after=merged_after,
        patch=tuple(how["patch"]),
        mode=Mode.parse(how["mode"]),
        seconds=how["seconds"],
        classes=classes,
    )


def run_lengths(result: Segmentation) -> dict[str, object]:
    """The class ids as runs along the rows, [class, length] each."""
    flat = result.labels.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=-1 - int(flat[0])))
    lengths = np.diff(starts, append=flat.size)
    height, width = result.labels.shape
    return {
        "size": [width, height],
        "classes": list(result.classes.names),
        "runs": np.stack([flat[starts], lengths], 1).tolist(),
    }


def everything(result: Segmentation) -> dict[str, object]:
    """Size, ratio of each class, of patches paused after each block (0: never) and merged, images.

    They are data URLs: the mask, pauses and mergings with a pixel for each patch, which covers
    ``patch`` pixels down and across, and the entropy on its coarse grid.
    """
    height, width = result.labels.shape
    paused, blocks = result.paused_after, (0, *result.mode.pause.blocks)
    drawn: dict[str, Pixels | Image.Image] = {
        "labels": mask_image(result.labels, result.classes),
        "paused": _tints(paused, result.mode.pause.blocks),
        "merged": _tints(result.merged_after, [block for block, _ in result.mode.merge.stages]),
        "entropy": result.entropy_map(full_size=False),
    }
    start = f"data:{PNG};base64,"
    return {
        "width": width,
        "height": height,
        "patch": result.patch,
        "shares": {name: ratio for name, ratio in result.class_ratios().items() if ratio},
        "blocks": {str(block): float((paused == block).mean()) for block in blocks},
        "merged": float((result.merged_after > 0).mean()),
        "images": {name: start + b64encode(png(image)).decode() for name, image in drawn.items()},
    }


def _tints(after: UInt8[np.ndarray, "h w"], blocks: Sequence[int]) -> Image.Image:
    """A pixel for each patch, in the colour of its block, clear where it has none."""
    clear, *colours = ((*colour, 153) for colour in block_colours(len(blocks) + 1))
    palette = np.array([(*clear[:3], 0), *colours], np.uint8)
    return Image.fromarray(palette[np.searchsorted((0, *blocks), after)])
