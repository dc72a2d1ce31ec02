"""A segmentation as the bytes of an answer."""

import json
from base64 import b64encode
from functools import partial

import numpy as np

from paumer.drawing import encode as encode_image
from paumer.drawing import mask_image
from paumer.inference.result import Segmentation

PNG, JSON = "image/png", "application/json"
OUTPUTS = ("mask", "overlay", "rle", "all")
"""What a client may choose; all of it at once comes as JSON."""

png = partial(encode_image, compress_level=1)
"""The image as PNG, packed fast rather than small."""


def encode(result: Segmentation, output: str) -> tuple[bytes, str]:
    """One output, and its media type: a palette PNG, the image under its classes, or runs."""
    if output == "rle":
        return json.dumps(run_lengths(result), separators=(",", ":")).encode(), JSON
    mask = output == "mask"
    return png(mask_image(result.labels, result.classes) if mask else result.blended()), PNG


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
