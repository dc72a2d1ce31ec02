"""A network as a torch.export program."""

from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paumer.exporting import parts
from paumer.inference.exported import ExportInfo
from paumer.inference.graphs import INNER
from paumer.model.decoders import TokenDecoder
from paumer.model.prediction import Prediction
from paumer.model.segmenter import PausingSegmenter


class Traced(nn.Module):
    """A network of one size and mode, or of any size with the mode as inputs, but for merging."""

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
        """Coarse logits, and the block each patch paused after and was merged after."""
        model = self.model
        if ratios is None or neighbours is None or protect is None:
            return cast(Prediction, model(images, self.info.mode, full_size=False)).maps()
        state, mode = parts.start(model, images), {"neighbours": neighbours, "protect": protect}
        for number in range(1, model.backbone.depth + 1):
            state = {**state, **parts.block(model, state, number)}
            patches = state["index"].shape[1]
            count = torch.scalar_tensor(patches).long()
            gone = (ratios[number - 1] * count.double()).long()
            room = _room(torch.maximum(count - gone, torch.ones_like(count)), 1, patches)
            more = {"block": torch.tensor(number), "room": room}
            state = {**state, **parts.pause(model, {**state, **more}, mode)}
        if isinstance(model.decoder, TokenDecoder):
            assert exit is not None
            active = state["index"].shape[1]
            patches = active + state["left_index"].shape[1]
            count = torch.where(exit, active, patches)
            state = {**state, "room": _room(count, active, patches)}
        out = parts.finish(model, state)
        return tuple(out[name] for name in INNER)


def _room(count: Tensor, least: int, most: int) -> Tensor:
    """Room for a number of patches that the exporter does not know yet."""
    number = cast(int, count.item())  # int() would ask for its value now.
    torch._check(number >= least)
    torch._check(number <= most)
    return torch.empty(number)


@torch.inference_mode(False)  # In which the exporter cannot trace.
def export_program(model: PausingSegmenter, path: Path, info: ExportInfo) -> None:
    """Write a torch.export program (.pt2)."""
    down, across = model.backbone.patch
    batch, rows, columns = (torch.export.Dim(n, max=4096) for n in ("batch", "rows", "columns"))
    free = {0: batch} if info.size else {0: batch, 2: down * rows, 3: across * columns}
    images = torch.randn(2, 3, *(info.size or (4 * down, 6 * across)))
    values = info.inputs(info.mode) if info.free else {}
    with torch.no_grad():
        program = torch.export.export(
            Traced(model, info).eval(),
            (images,),
            {name: torch.from_numpy(value) for name, value in values.items()},
            dynamic_shapes={"images": free, **dict.fromkeys(values)},
        )
    torch.export.save(program, path, extra_files={"paumer.json": info.to_json()})
