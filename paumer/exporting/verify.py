"""The check that a file gives the labels of the model, by the whole path from image to labels."""

import itertools
import os
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from paumer.data.samples import Dataset
from paumer.disk import publish
from paumer.exporting.onnx import make_onnx
from paumer.exporting.rounding import Rounding, find_ranges, round_layers
from paumer.exporting.script import script_text
from paumer.exporting.traced import export_program
from paumer.inference.exported import ExportInfo
from paumer.inference.graphs import NORMALISED
from paumer.inference.predictor import Predictor
from paumer.mode import Mode
from paumer.progress import Progress
from paumer.scenes.scene import scene

if TYPE_CHECKING:
    from onnx import ModelProto

AGREEMENT = 0.999
"""The least ratio of pixels whose label must be that of the model."""

ROUNDED_AGREEMENT = 0.97
"""The same in 8 bits."""

Pixels = UInt8[np.ndarray, "_ _ 3"]
Labels = Callable[[Pixels, Mode], Integer[np.ndarray, "_ _"]]
"""The labels of an image in a mode."""


def script_of(out: Path, is_program: bool) -> Path | None:
    """The script of a file, if both can be written; a program has none."""
    suffix = ".pt2" if is_program else ".onnx"
    if out.suffix != suffix:
        raise ValueError(f'"{out}" is to be a {suffix} file: name --out {out.stem}{suffix}')
    script = None if is_program else out.with_suffix(".py")
    for path in (out, script):
        if path and os.path.lexists(path):
            raise ValueError(f'"{path}" exists: name another --out')
    return script


def sample_images(samples: Sequence[Dataset]) -> list[Pixels]:
    """Twenty images of different sizes: those of the sample set, and synthetic scenes."""
    sizes = ((160, 120), (224, 224), (240, 320), (333, 250), (480, 360), (640, 400))
    images = [dataset[index].image for dataset in samples for index in range(len(dataset))]
    return [*images, *(scene(seed, sizes[seed % 6])[0] for seed in range(12))]


def compare(
    predictor: Predictor,
    ways: Mapping[str, Labels],
    images: Sequence[Pixels],
    modes: Sequence[Mode],
    progress: Progress | None = None,
) -> dict[str, float]:
    """The ratio of pixels of all images with the predictor's label, in the worst mode."""
    worst = dict.fromkeys(ways, 1.0)
    for number, mode in enumerate(modes):
        equal, total = dict.fromkeys(ways, 0), 0
        for place, image in enumerate(images):
            own = predictor.predict(image, mode).labels
            total += own.size
            for name, labels in ways.items():
                equal[name] += int((labels(image, mode) == own).sum())
            if progress:
                progress(number * len(images) + place + 1, len(modes) * len(images))
        worst = {name: min(worst[name], equal[name] / total) for name in ways}
    return worst


def rounded_by(
    predictor: Predictor,
    info: ExportInfo,
    images: Sequence[Pixels],
    modes: Sequence[Mode],
    proto: "ModelProto",
) -> "ModelProto":
    """A graph in 8 bits, by the ranges of what images make in modes, one after the other."""
    feeds = []
    for image, mode in zip(images, itertools.cycle(modes), strict=False):
        values = predictor.network_inputs(image, mode)[:1].cpu().numpy()
        feeds.append({NORMALISED: values, **(info.inputs(mode) if info.free else {})})
    return round_layers(proto, find_ranges(proto, feeds))


@contextmanager
def new_file(  # Eight parameters: what is written, what it is held against, and by whom.
    predictor: Predictor,
    out: Path,
    info: ExportInfo,
    images: Sequence[Pixels],
    modes: Sequence[Mode],
    reopen: Callable[[Path], Predictor],
    rounding: Rounding | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Predictor, dict[str, float]]]:
    """Write the file ``out`` and its script, which get their names when the context ends.

    Inside they are verified: gives the file's predictor, and the least ratio of equal pixels over
    modes, of the ``file`` and of the ``script`` that uses it. ``reopen`` gives the predictor of a
    file, ``rounding`` its graph in 8 bits. What fails, also inside, leaves neither.
    """
    partial = out.with_name(f".{out.stem}.partial{out.suffix}")
    script, name = partial.with_suffix(".py"), out.with_suffix(".py").name
    # Windows are cut by paumer alone.
    scripted = info.runtime != "program" and not info.size and not predictor.config.window
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in (partial, script):  # Of a killed export; or links, which are not to be followed.
        path.unlink(missing_ok=True)
    try:
        if info.runtime == "program":
            export_program(predictor.weights(), partial, info)
        else:
            proto = make_onnx(predictor.weights(), info)
            partial.write_bytes((rounding(proto) if rounding else proto).SerializeToString())
        exported = reopen(partial)
        ways: dict[str, Labels] = {"file": lambda image, mode: exported.predict(image, mode).labels}
        if scripted:
            runtime = {"onnx": "onnxruntime"}.get(info.runtime, info.runtime)
            script.write_text(script_text(out.name, name, runtime), "utf-8")
            ways["script"] = _script_labels(script, partial, info)
        least = ROUNDED_AGREEMENT if rounding else AGREEMENT
        found = compare(predictor, ways, images, modes, progress)
        for what, ratio in found.items():
            if ratio < least:
                raise ValueError(
                    f"the exported {what} gives only {ratio:.2%} of the pixels the label that the "
                    f"model gives them, and {least:.1%} are needed: nothing was written"
                )
        yield exported, found
        publish(partial, out)
        if scripted:
            publish(script, out.with_suffix(".py"))
    finally:
        for path in (partial, script):
            path.unlink(missing_ok=True)


def _script_labels(script: Path, file: Path, info: ExportInfo) -> Labels:
    """What the script makes of an image, given that file."""
    program = runpy.run_path(str(script))
    start, names = program["open_file"](file), {mode: name for name, mode in info.modes.items()}
    own = info.runtime == "openvino"  # It runs in the file's own mode.

    def labels(image: Pixels, mode: Mode) -> Integer[np.ndarray, "_ _"]:
        name = None if own or mode == info.mode else names.get(mode, "none")
        found: np.ndarray = program["segment"](start, Image.fromarray(image), name)
        return found

    return labels
