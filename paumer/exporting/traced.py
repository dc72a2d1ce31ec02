"""A network in one mode as a module of plain tensors, which exporters can trace."""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from paumer.inference.exported import ExportInfo, check_exportable
from paumer.mode import UNPAUSED, Mode
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Branch, Coming, Merging, Pause

BATCH = torch.export.Dim("batch", min=1, max=1024)
"""Exported files take any number of images, up to this."""


class Traced(nn.Module):
    """A network in one mode, or with ``kept``: how many patches continue after each block."""

    def __init__(self, model: PausingSegmenter, mode: Mode) -> None:
        super().__init__()
        self.model, self.mode = model, mode

    def forward(self, images: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Coarse logits, and the block each patch paused after."""
        model, grid = self.model, self.model.grid(images)
        if kept is None:
            out = model(images, self.mode, full_size=False)
            return out.logits, out.paused_after()
        criterion = model.criterion(self.mode, grid, {})
        most, stages = grid[0] * grid[1], list[Coming]()
        for index, (block, merges, _) in enumerate(self.mode.stages):
            count = cast(int, kept[index].item())  # int() would ask for its value now.
            torch._check(count >= 1)
            torch._check(count <= most)
            stages.append(Merging(block, count) if merges else Pause(block, count, criterion))
            most = count
        *_, last = model.steps(images, Branch.chain(stages))
        out = model.finish(last.walks, grid, self.mode.early_exit)
        return out.logits, out.paused_after()


def describe(model: PausingSegmenter, size: tuple[int, int], mode: Mode, dial: bool) -> ExportInfo:
    """What a file of that model will say of itself; raises where there can be none."""
    if model.config is None:
        raise ValueError("the network has no configuration: its classes are not known")
    patch = model.backbone.patch
    if any(side % p for side, p in zip(size, patch, strict=True)):
        raise ValueError(
            f"a size of {size[1]}x{size[0]} is not made of whole patches of {patch[1]}x{patch[0]}"
        )
    check_exportable(mode)
    model.check(mode)
    if dial and not mode.stages:
        raise ValueError("nothing pauses, so there is no ratio to turn: name stages")
    if dial and mode.pause.leaves:
        raise ValueError(f'after all have left there is no ratio to turn ("{mode}")')
    if dial and model.context:
        raise ValueError(
            "one file cannot serve all ratios of a model with a context, because how many means "
            "continue depends on them: export one mode"
        )
    patches = (size[0] // patch[0]) * (size[1] // patch[1])
    return ExportInfo(model.config.to_json(), size, mode, dial, patches)


def export_program(
    model: PausingSegmenter, path: Path, size: tuple[int, int], mode: Mode = UNPAUSED
) -> ExportInfo:
    """Write a torch.export program (.pt2) of one mode."""
    info = describe(model, size, mode, dial=False)
    traced, images = Traced(model, mode).eval(), torch.randn(2, 3, *size)
    with torch.no_grad():
        program = torch.export.export(traced, (images,), dynamic_shapes={"images": {0: BATCH}})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial.pt2")
    torch.export.save(program, partial, extra_files={"paumer.json": info.to_json()})
    partial.replace(path)
    return info
