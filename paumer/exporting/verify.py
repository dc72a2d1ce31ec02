"""The check that an exported file is the network, and a small program that uses it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from paumer.disk import publish
from paumer.exporting.onnx import export_onnx
from paumer.exporting.traced import export_program
from paumer.inference.exported import ExportInfo, Runner, open_onnx, open_program
from paumer.mode import Mode
from paumer.model.segmenter import PausingSegmenter
from paumer.pause_config import MergeConfig, PauseConfig

AGREEMENT = 0.999
"""The least share of patches whose class must agree with the network before export."""

ROUNDED_AGREEMENT = 0.98
"""The same where weights were rounded to 8 bits."""


def verify(
    model: PausingSegmenter,
    info: ExportInfo,
    run: Runner,
    images: Float[Tensor, "b 3 h w"],
    modes: Sequence[Mode] = (),
    least: float = AGREEMENT,
) -> float:
    """The least share of patches whose class agrees with the network, over modes.

    Of a file of one mode there is one; of a dial ``modes`` are tried. Raises if the share is below
    ``least``.
    """
    worst = 1.0
    for mode in modes if info.dial else [info.mode]:
        with torch.inference_mode():
            labels = model(images, mode, full_size=False).logits.argmax(1).numpy()
        logits, _ = run(images.numpy(), info.kept(mode) if info.dial else [])
        worst = min(worst, float((logits.argmax(1) == labels).mean()))
        if worst < least:
            raise ValueError(
                f'the exported network disagrees with the original at "{mode}": only '
                f"{worst:.2%} of the patches have the same class"
            )
    return worst


def write_verified(
    network: PausingSegmenter,
    out: Path,
    size: tuple[int, int],
    mode: Mode,
    dial: bool,
    kind: str,
    images: Float[Tensor, "b 3 h w"],
) -> tuple[tuple[Mode, ...], float]:
    """Write the file ``out``, which gets its name when it is verified: what fails leaves none.

    ``kind`` is onnx, onnx-int8, openvino or program. Returns the modes that it was verified in and
    the least agreement with the network.
    """
    partial, rounded = out.with_name(f".{out.stem}.partial{out.suffix}"), kind == "onnx-int8"
    try:
        if kind == "program":
            info = export_program(network, partial, size, mode)
            run = open_program(partial)
        else:
            export_onnx(network, partial, size, mode, dial, rounded)
            info, run = open_onnx(partial, kind)
        modes = [mode]
        if dial:
            modes = [_turned(mode, ratio) for ratio in (0.0, 0.3, 0.6)]
        least = ROUNDED_AGREEMENT if rounded else AGREEMENT
        worst = verify(network, info, run, images, modes, least)
        publish(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return tuple(modes), worst


def _turned(mode: Mode, ratio: float) -> Mode:
    """The mode at another ratio; of merging a third of it, because it adds up."""
    pause = PauseConfig(tuple((block, ratio) for block in mode.pause.blocks if ratio))
    merge = MergeConfig(tuple((block, ratio / 3) for block, _ in mode.merge.stages if ratio))
    return replace(mode, pause=pause, merge=merge)


def write_script(path: Path, file: str) -> None:
    """Write the script that uses an exported file."""
    partial = path.with_name(f".{path.stem}.partial.py")
    try:
        partial.write_text(USE_SCRIPT.format(file=file), "utf-8")
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)


USE_SCRIPT = '''"""Segment an image with {file}: python THIS.py street.jpg [ratio ...]

Needs numpy, pillow and onnxruntime. With a file whose ratios are free, give a ratio for each
block at which it can pause.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime
from PIL import Image

file = pathlib.Path(__file__).with_name("{file}")
session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
info = json.loads(session.get_modelmeta().custom_metadata_map["paumer"])
config, (height, width) = info["config"], info["size"]

image = Image.open(sys.argv[1]).convert("RGB")
pixels = np.asarray(image.resize((width, height)), np.float32) / 255
normal = (pixels - np.float32(config["mean"])) / np.float32(config["std"])
feed = {{"images": normal.transpose(2, 0, 1)[None]}}
if info["dial"]:
    ratios = [float(text) for text in sys.argv[2:]] or [0.4] * len(info["blocks"])
    if len(ratios) != len(info["blocks"]):
        sys.exit(f"give a ratio for each of the blocks {{info['blocks']}}")
    counts, active = [], info["patches"]
    for ratio in ratios:
        active = max(1, active - int(ratio * active))
        counts.append(active)
    feed["kept"] = np.array(counts, np.int64)
logits, paused_after = session.run(None, feed)
labels = logits[0].argmax(0)
for label, count in sorted(zip(*np.unique(labels, return_counts=True)), key=lambda pair: -pair[1]):
    print(f"{{config['classes'][label]}}: {{count / labels.size:.1%}}")
print(f"{{(paused_after > 0).mean():.0%}} of the patches paused")
mask = Image.fromarray(labels.astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
mask.save(pathlib.Path(sys.argv[1]).stem + "_mask.png")
'''
"""A small program that uses an exported file and nothing of paumer."""
