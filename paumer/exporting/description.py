"""What an exported file says of itself."""

from collections.abc import Mapping
from types import MappingProxyType

from paumer.inference.exported import ExportInfo, check_exportable
from paumer.mode import Mode
from paumer.model.segmenter import PausingSegmenter


def describe(
    model: PausingSegmenter,
    mode: Mode,
    size: tuple[int, int] | None = None,
    runtime: str = "onnx",
    output: str = "labels",
    pixels: str = "uint8",
    points: Mapping[str, object] = MappingProxyType({}),
) -> ExportInfo:
    """What a file of that model will say of itself; raises where there can be none.

    With a ``size`` it is a file of that size and mode alone.
    """
    if model.config is None:
        raise ValueError("the network has no configuration: its classes are not known")
    patch = model.backbone.patch
    if size is not None:
        padded = [-(-side // p) * p for side, p in zip(size, patch, strict=True)]
        size = padded[0], padded[1]
    check_exportable(mode)
    model.check(mode)
    info = ExportInfo(
        config=model.config.to_json(),
        mode=mode,
        depth=model.backbone.depth,
        patch=patch,
        size=size,
        points=dict(points),
        runtime=runtime,
        pixels=pixels,
        output=output,
    )
    info.check(mode)
    return info
