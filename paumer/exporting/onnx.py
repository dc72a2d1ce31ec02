"""ONNX files of one mode or of all ratios of its stages, in 32 or in 8 bits."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paumer.disk import replace_file
from paumer.exporting.traced import BATCH, Traced, describe
from paumer.inference.exported import ExportInfo, fuse_attention, need
from paumer.mode import UNPAUSED, Mode
from paumer.model.segmenter import PausingSegmenter


@torch.inference_mode(False)  # In which the exporter cannot trace.
def export_onnx(
    model: PausingSegmenter,
    path: Path,
    size: tuple[int, int],
    mode: Mode = UNPAUSED,
    dial: bool = False,
    rounded: bool = False,
) -> ExportInfo:
    """Write an ONNX file for images of ``size`` (height, width), a multiple of the patch.

    It runs in that mode; with ``dial`` the ratios of its stages are inputs. ``rounded`` files have
    their linear layers in 8 bits, for ONNX Runtime alone.
    """
    onnx = need("onnx", "onnx")
    need("onnxscript", "onnx")
    info = describe(model, size, mode, dial)
    inputs, shapes = {"images": torch.randn(2, 3, *size)}, {"images": {0: BATCH}, "kept": None}
    if dial:
        inputs["kept"] = torch.tensor(info.kept(mode))
    with _only_errors("onnx_ir"):
        program = torch.onnx.export(
            Traced(model, mode).eval(),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["logits", "paused_after"],
            dynamic_shapes={name: shapes[name] for name in inputs},
            custom_translation_table={torch.ops.aten.sort.stable: _sort},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "paumer", info.to_json()
    onnx.checker.check_model(proto)
    path.parent.mkdir(parents=True, exist_ok=True)
    if rounded:
        _write_rounded(proto, path)
    else:
        replace_file(path, proto.SerializeToString())
    return info


@contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Keep a library's warnings, of which a user can make nothing, from being printed."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _sort(self: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Sorting in ONNX: its TopK gives equal values in their first order, as a stable sort does."""
    from onnxscript import opset18 as op

    count = op.Shape(self, start=dim, end=None if dim == -1 else dim + 1)
    return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)


def _write_rounded(proto: Any, path: Path) -> None:
    """Write a graph as a file whose linear layers multiply in 8 bits, for ONNX Runtime alone.

    Weights are rounded channel by channel, activations as they come.
    """
    need("onnxruntime", "onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _only_errors("root"):
        rounded = Path(folder) / "rounded.onnx"
        quantize_dynamic(
            fuse_attention(proto),
            rounded,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Sums of two products overflow 16 bits on processors without instructions for them.
            reduce_range=True,
        )
        replace_file(path, rounded.read_bytes())
