"""A network as a module of plain tensors, which exporters can trace for all sizes and modes."""

from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paumer import criteria, pausing
from paumer.inference.exported import ExportInfo, check_exportable
from paumer.mode import Mode
from paumer.model.decoders import TokenDecoder, to_grid
from paumer.model.prediction import Prediction
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Merging, Pause, Walk


class Traced(nn.Module):
    """A network of one size and mode, of any size, or of any size and mode.

    In the last form the ratio of patches that pause after each block and the rest of the mode are
    inputs.
    """

    def __init__(self, model: PausingSegmenter, info: ExportInfo) -> None:
        super().__init__()
        self.model, self.info = model, info

    def forward(
        self,
        images: Float[Tensor, "b 3 h w"],
        ratios: Float[Tensor, " stages"] | None = None,
        neighbours: Tensor | None = None,
        protect: Float[Tensor, " classes"] | None = None,
        exit: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Coarse logits, and the block each patch paused after; of a mode that merges, merged."""
        model, grid, mode = self.model, self.model.grid(images), self.info.mode
        if self.info.size:
            return self._given(model(images, mode, full_size=False))
        if ratios is None:
            score = model.criterion(mode, grid, {})
            stages = mode.stages
            amounts = [cast(float, amount) for *_, amount in stages]
            given = torch.tensor(amounts, dtype=torch.float64)
        else:
            assert neighbours is not None
            assert protect is not None
            score, given = _any_criterion(grid, neighbours, protect), ratios
            stages = tuple((block, False, 0.0) for block in range(1, model.backbone.depth + 1))
        walk, left = model.start(images), torch.scalar_tensor(grid[0] * grid[1]).long()
        most, number = grid[0] * grid[1], 0
        for block in range(1, model.backbone.depth + 1):
            if ratios is None and isinstance(most, int) and most == 0:
                break  # All have left.
            walk = model.run_block(walk, block)
            for _, merges, amount in (stage for stage in stages if stage[0] == block):
                left = _count(left, given[number], merges)
                most, number = (0 if amount == 1 else _known(left, most)), number + 1
                if merges:
                    walk = model.merge(walk, Merging(block, most))
                else:
                    (walk,) = model.pause(walk, Pause(block, most, score))
        if exit is None:
            out = model.finish([walk], grid, mode.early_exit and ratios is None)
        else:
            decoded = _known(torch.where(exit, left, grid[0] * grid[1]), grid[0] * grid[1])
            out = _finish(model, walk, grid, decoded)
        return self._given(out)

    def _given(self, out: Prediction) -> tuple[Tensor, ...]:
        return out.maps()[: len(self.info.outputs)]


def _any_criterion(
    grid: tuple[int, int], neighbours: Tensor, protect: Float[Tensor, " classes"]
) -> criteria.Criterion:
    """The criterion of any mode that a file can run."""
    mean = criteria.neighbours(grid)

    def score(logits: criteria.Logits, patch_index: criteria.PatchIndex) -> criteria.Score:
        entropy = criteria.entropy(logits, patch_index)
        own = torch.where(neighbours, mean(logits, patch_index), entropy)
        return own + 1000 * protect[logits.argmax(-1)]

    return score


def _count(left: Tensor, ratio: Tensor, merges: bool) -> Tensor:
    """How many patches are left, in the arithmetic of `keep_count` and `merged_count`."""
    gone = (ratio * left.double()).long()
    if merges:
        return left - torch.minimum(gone, left // 2)
    return torch.where(ratio < 1, torch.maximum(left - gone, left.clamp(max=1)), 0)


def _known(count: Tensor, most: int) -> int:
    """A count as a size that the exporter does not know yet."""
    number = cast(int, count.item())  # int() would ask for its value now.
    torch._check(number >= 1)
    torch._check(number <= most)
    return number


def _finish(model: PausingSegmenter, walk: Walk, grid: tuple[int, int], count: int) -> Prediction:
    """The prediction when the decoder sees ``count`` patches: the active ones, or all.

    As log-probabilities, which have the labels of logits.
    """
    assert isinstance(model.decoder, TokenDecoder)
    patches = model.backbone.norm(model.assemble(walk))[:, model.backbone.prefix :]
    active = torch.zeros_like(patches[..., 0]).flatten()
    active = active.index_fill(0, walk.patch_index.flatten(), 1.0).view(patches.shape[:2])
    rows = pausing.choose(active, count)[..., None]
    seen = patches.gather(1, rows.expand(-1, -1, patches.shape[2]))
    decoded = model.decoder.token_logits(seen).log_softmax(-1)
    last = walk.stages[-1]
    own = last.logits.gather(1, last.kept[..., None].expand(-1, -1, last.logits.shape[2]))
    stages = [(s.logits, pausing.rows_of(s.kept, s.patch_index.shape[1])) for s in walk.stages]
    first = pausing.assemble(own, stages).log_softmax(-1)
    logits = first.scatter(1, rows.expand(-1, -1, first.shape[2]), decoded)
    return Prediction(to_grid(logits, grid), walk.stages, grid)


@torch.inference_mode(False)  # In which the exporter cannot trace.
def trace(model: PausingSegmenter, info: ExportInfo) -> torch.export.ExportedProgram:
    """The network of a file that will say ``info`` of itself, as torch traced it."""
    down, across = model.backbone.patch
    batch, rows, columns = (
        torch.export.Dim(name, max=most)
        for name, most in (("batch", 1024), ("rows", 4096), ("columns", 4096))
    )
    free = {0: batch} if info.size else {0: batch, 2: down * rows, 3: across * columns}
    images = torch.randn(2, 3, *(info.size or (4 * down, 6 * across)))
    values = {name: torch.from_numpy(value) for name, value in info.inputs(info.mode).items()}
    with torch.no_grad():
        return torch.export.export(
            Traced(model, info).eval(),
            (images,),
            values,
            dynamic_shapes={"images": free, **dict.fromkeys(values)},
        )


def describe(
    model: PausingSegmenter, mode: Mode, size: tuple[int, int] | None = None, **more: Any
) -> ExportInfo:
    """What a file of that model will say of itself; raises where there can be none.

    With a ``size`` it is a file of that size and mode alone; ``more`` are fields of the rest.
    """
    if model.config is None:
        raise ValueError("the network has no configuration: its classes are not known")
    if size is not None:
        padded = [-(-side // p) * p for side, p in zip(size, model.backbone.patch, strict=True)]
        size = padded[0], padded[1]
    check_exportable(mode)
    model.check(mode)
    free = size is None and not (mode.merge or mode.pause.leaves or model.context)
    depth, config = model.backbone.depth, model.config.to_json()
    return ExportInfo(config=config, mode=mode, free=free, depth=depth, size=size, **more)


def export_program(model: PausingSegmenter, path: Path, info: ExportInfo) -> None:
    """Write a torch.export program (.pt2)."""
    torch.export.save(trace(model, info), path, extra_files={"paumer.json": info.to_json()})
