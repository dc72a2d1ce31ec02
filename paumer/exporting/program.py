"""torch.export programs (.pt2) of one mode."""

from pathlib import Path

import torch

from paumer.exporting.traced import Fixed, describe
from paumer.inference.exported import ExportInfo
from paumer.mode import UNPAUSED, Mode
from paumer.model.segmenter import PausingSegmenter


def export_program(
    model: PausingSegmenter, path: Path, size: tuple[int, int], mode: Mode = UNPAUSED
) -> ExportInfo:
    """Write a torch.export program (.pt2) of one mode."""
    model = model.eval()
    info = describe(model, size, mode, dial=False)
    batch = torch.export.Dim("batch", min=1, max=1024)
    with torch.no_grad():
        program = torch.export.export(
            Fixed(model, mode),
            (torch.randn(2, 3, *size),),
            dynamic_shapes={"images": {0: batch}},
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial.pt2")
    torch.export.save(program, partial, extra_files={"paumer.json": info.to_json()})
    partial.replace(path)
    return info
