"""`paumer export`: one configuration or all of them in one file, proved before it counts."""

from pathlib import Path
from typing import TYPE_CHECKING

from paumer.commands.console import say
from paumer.options import ExportOptions, parse_size

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from paumer.predict import Predictor


def export(options: ExportOptions) -> None:
    """Write the model as ONNX or as a torch.export program, and prove that it agrees.

    Without --pause one ONNX file serves all configurations of --blocks: how many patches go on
    is an input.
    """
    from paumer.criteria import name_of
    from paumer.export import (
        AGREEMENT,
        ROUNDED_AGREEMENT,
        USE_SCRIPT,
        export_onnx,
        export_program,
        open_onnx,
        open_program,
        round_onnx,
        verify,
    )
    from paumer.pause_config import PauseConfig
    from paumer.predict import load

    if options.out.exists():
        raise ValueError(f'"{options.out}" exists: name another --out')
    predictor = load(options.model)
    network, config = predictor.network, predictor.config
    size = config.image_size
    if options.size is not None:
        width, height = parse_size(options.size)
        size = (height, width)
    way = None if options.pause is None else predictor.way(options.pause)
    early_exit = options.early_exit or bool(way and way.early_exit)
    criterion = options.criterion or (way and name_of(way.criterion)) or "entropy"
    images = _pictures(options.images, size, predictor)
    if options.format == "program" and way is None:
        raise ValueError("a torch.export program holds one configuration: give --pause")
    # The file gets its name when it is proved: what fails leaves none.
    partial = options.out.with_name(f".{options.out.stem}.partial{options.out.suffix}")
    try:
        if options.format == "program" and way is not None:
            info = export_program(network, partial, size, way.pause, early_exit, criterion)
            run = open_program(partial)
        else:
            pause = None if way is None else way.pause
            how = (pause, options.blocks, early_exit, criterion)
            info = export_onnx(network, partial, size, *how)
            if options.format == "onnx-int8":
                round_onnx(partial, partial)
            run = open_onnx(partial, options.format)[1]
        if way is not None:
            pauses = [way.pause]
        else:
            shares = (0.0, 0.3, 0.6)
            pauses = [PauseConfig(tuple((b, s) for b in info.blocks if s)) for s in shares]
        least = ROUNDED_AGREEMENT if options.format == "onnx-int8" else AGREEMENT
        worst = verify(network, info, run, images, pauses, least)
        partial.replace(options.out)
    finally:
        partial.unlink(missing_ok=True)
    megabytes = options.out.stat().st_size / 1e6
    say(f"wrote {options.out}: {megabytes:.1f} MB, {size[1]}x{size[0]}, any batch")
    told = ", ".join(map(str, pauses))
    say(f"agrees with the network on {worst:.3%} of the patches of {len(images)} pictures ({told})")
    if options.format != "program":
        script = options.out.with_suffix(".py")
        script.write_text(USE_SCRIPT.format(file=options.out.name), "utf-8")
        say(f"use it as in {script}")


def _pictures(
    folder: Path | None, size: tuple[int, int], predictor: "Predictor"
) -> "Float[Tensor, 'b 3 h w']":
    """Some real pictures as the network sees them: of a folder, or drawn scenes."""
    import torch
    from torch.nn import functional as F

    from paumer.data.transforms import normalise
    from paumer.media import SUFFIXES, read_image
    from paumer.scenes.scene import scene

    if folder is None:
        pictures = [scene(seed, (max(64, size[1]), max(48, size[0])))[0] for seed in range(4)]
    else:
        files = sorted(p for p in folder.glob("*") if p.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(f'no pictures in "{folder}"')
        pictures = [read_image(file) for file in files[:50]]
    config = predictor.config
    normal = [normalise(picture, config.mean, config.std)[None] for picture in pictures]
    return torch.cat([F.interpolate(image, size, mode="bilinear") for image in normal])
