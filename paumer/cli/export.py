"""`paumer export`: one mode, or all ratios of its stages, in one verified file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paumer.cli.console import say
from paumer.cli.options import ExportOptions
from paumer.training.options import parse_size

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from paumer.inference.predictor import Predictor

DIAL = "3:0.4,5:0.4,7:0.4"
"""The mode of a file for all ratios, where none is named."""


def export(options: ExportOptions) -> None:
    """Write the model as ONNX or as a torch.export program, and verify that it agrees.

    Without --mode, or with --dial, how many patches continue after each block is an input.
    """
    from paumer.api import load
    from paumer.exporting.onnx import export_onnx
    from paumer.exporting.program import export_program
    from paumer.exporting.verify import AGREEMENT, ROUNDED_AGREEMENT, USE_SCRIPT, verify
    from paumer.inference.exported import open_onnx, open_program
    from paumer.pause_config import PauseConfig

    script = options.out.with_suffix(".py")
    if options.out == script:
        raise ValueError(f'"{script}" is where its script goes: name another --out, as m.onnx')
    for path in (options.out, script):
        if path.exists():
            raise ValueError(f'"{path}" exists: name another --out')
    predictor = load(options.model)
    network, size = predictor.network, predictor.config.image_size
    if options.input is not None:
        width, height = parse_size(options.input)
        size = (height, width)
    mode = predictor.mode(options.mode or DIAL)
    if mode.size is not None:
        raise ValueError(f'a file takes images of one size: give --input instead of "{mode}"')
    dial, program = options.dial or options.mode is None, options.format == "program"
    if program and dial:
        raise ValueError("a torch.export program holds one mode: give --mode, without --dial")
    images, rounded = _pictures(options.images, size, predictor), options.format == "onnx-int8"
    # The file gets its name when it is verified: what fails leaves none.
    partial = options.out.with_name(f".{options.out.stem}.partial{options.out.suffix}")
    try:
        if program:
            info = export_program(network, partial, size, mode)
            run = open_program(partial)
        else:
            export_onnx(network, partial, size, mode, dial, rounded)
            info, run = open_onnx(partial, options.format)
        pauses = [mode.pause]
        if dial:
            shares = (0.0, 0.3, 0.6)
            pauses = [PauseConfig(tuple((b, s) for b in info.blocks if s)) for s in shares]
        least = ROUNDED_AGREEMENT if rounded else AGREEMENT
        worst = verify(network, info, run, images, pauses, least)
        partial.replace(options.out)
    finally:
        partial.unlink(missing_ok=True)
    megabytes = options.out.stat().st_size / 1e6
    say(f"wrote {options.out}: {megabytes:.1f} MB, {size[1]}x{size[0]}, any batch")
    modes = ", ".join(str(replace(mode, pause=pause)) for pause in pauses)
    say(f"agrees with the network on {worst:.3%} of the patches of {len(images)} images ({modes})")
    if not program:
        script.write_text(USE_SCRIPT.format(file=options.out.name), "utf-8")
        say(f"use it as in {script}")


def _pictures(
    folder: Path | None, size: tuple[int, int], predictor: "Predictor"
) -> "Float[Tensor, 'b 3 h w']":
    """Some real images as the network sees them: of a folder, or synthetic scenes."""
    import torch
    from torch.nn import functional as F

    from paumer.data.images import SUFFIXES, read_image
    from paumer.data.transforms import normalise
    from paumer.scenes.scene import scene

    if folder is None:
        pictures = [scene(seed, (max(64, size[1]), max(48, size[0])))[0] for seed in range(4)]
    else:
        files = sorted(p for p in folder.glob("*") if p.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(f'no images in "{folder}"')
        pictures = [read_image(file) for file in files[:50]]
    config = predictor.config
    normal = [normalise(picture, config.mean, config.std)[None] for picture in pictures]
    return torch.cat([F.interpolate(image, size, mode="bilinear") for image in normal])
