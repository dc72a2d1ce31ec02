"""A segmentation as the bytes of an answer."""

import json
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

from paumer.drawing import Picture, mask_image
from paumer.inference.result import Segmentation

PNG, JSON = "image/png", "application/json"


def mask(result: Segmentation) -> tuple[bytes, str]:
    """The class ids as a palette PNG, and its media type."""
    return png(mask_image(result.labels, result.classes)), PNG


def overlay(result: Segmentation) -> tuple[bytes, str]:
    """The image under its classes as PNG, and its media type."""
    return png(result.blended()), PNG


def run_lengths(result: Segmentation) -> tuple[bytes, str]:
    """The class ids as runs along the rows, [class, length] each, as JSON, and its media type."""
    flat = result.labels.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=-1 - int(flat[0])))
    lengths = np.diff(starts, append=flat.size)
    height, width = result.labels.shape
    values = {
        "size": [width, height],
        "classes": list(result.classes.names),
        "runs": np.stack([flat[starts], lengths], 1).tolist(),
    }
    return json.dumps(values, separators=(",", ":")).encode(), JSON


def everything(result: Segmentation) -> dict[str, object]:
    """Size, share of each class and of patches paused after each block (0: never), and images.

    Overlay, labels, pauses and entropy are data URLs.
    """
    height, width = result.labels.shape
    paused, blocks = result.paused_after, (0, *result.mode.pause.blocks)
    drawn = {
        "overlay": result.blended(),
        "labels": result.painted(),
        "paused": result.tinted(),
        "entropy": result.entropy_map(),
    }
    start = f"data:{PNG};base64,"
    return {
        "width": width,
        "height": height,
        "shares": {name: share for name, share in result.class_shares().items() if share},
        "blocks": {str(block): float((paused == block).mean()) for block in blocks},
        "images": {name: start + b64encode(png(image)).decode() for name, image in drawn.items()},
    }


OUTPUTS: dict[str, Callable[[Segmentation], tuple[bytes, str]]] = {
    "mask": mask,
    "overlay": overlay,
    "rle": run_lengths,
}
OUTPUT_NAMES = (*OUTPUTS, "all")
"""What a client may choose; all of it at once comes as JSON."""


def png(image: Picture | Image.Image) -> bytes:
    """The image as PNG, packed fast rather than small."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    memory = BytesIO()
    image.save(memory, "PNG", compress_level=1)
    return memory.getvalue()
