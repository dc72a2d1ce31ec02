"""What an exported file says of itself."""

from typing import Any

from paumer.inference.exported import ExportInfo, check_exportable
from paumer.mode import Mode
from paumer.model.segmenter import PausingSegmenter


def describe(
    model: PausingSegmenter, mode: Mode, size: tuple[int, int] | None = None, **more: Any
) -> ExportInfo:
    """What a file of that model will say of itself; raises where there can be none.

    With a ``size`` it is a file of that size and mode alone; ``more`` are fields of the rest.
    """
    if model.config is None:
        raise ValueError("the network has no configuration: its classes are not known")
    patch, depth = model.backbone.patch, model.backbone.depth
    if size is not None:
        padded = [-(-side // p) * p for side, p in zip(size, patch, strict=True)]
        size = padded[0], padded[1]
    check_exportable(mode)
    model.check(mode)
    config = model.config.to_json()
    info = ExportInfo(config=config, mode=mode, depth=depth, patch=patch, size=size, **more)
    info.check(mode)
    return info
