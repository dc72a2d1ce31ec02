"""ONNX files of a network: any image size and mode in one, attention fused, in 32 or 8 bits."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paumer.disk import replace_file
from paumer.exporting.assembly import assemble
from paumer.exporting.description import describe
from paumer.exporting.labels import wrap
from paumer.exporting.parts import alike, trace
from paumer.exporting.rounding import round_layers
from paumer.inference.exported import ExportInfo
from paumer.inference.graphs import in_mode, need
from paumer.mode import UNPAUSED
from paumer.model.segmenter import PausingSegmenter

if TYPE_CHECKING:
    from onnx import ModelProto


def export_onnx(model: PausingSegmenter, path: Path, rounded: bool = False) -> None:
    """Write an ONNX file for any image size and mode.

    ``rounded`` files have their linear layers in 8 bits, for ONNX Runtime alone.
    """
    proto = make_onnx(model, describe(model, UNPAUSED))
    replace_file(path, (round_layers(proto) if rounded else proto).SerializeToString())


def make_onnx(model: PausingSegmenter, info: ExportInfo) -> "ModelProto":
    """The ONNX graph of a file that says ``info`` of itself."""
    onnx = need("onnx", "onnx")
    need("onnxscript", "onnx")
    program, inputs, outputs = trace(model)
    with torch.inference_mode(False), _only_errors("onnx_ir"):
        made = torch.onnx.export(
            program,
            input_names=inputs,
            output_names=outputs,
            custom_translation_table={
                torch.ops.aten.sort.stable: _sort,
                torch.ops.aten.remainder.Scalar: _remainder,
            },
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert made is not None
    proto: ModelProto = fuse_attention(made.model_proto)
    del proto.graph.value_info[:]  # Runtimes find the shapes themselves.
    assemble(proto, model, alike(model))
    if not info.free:
        proto = in_mode(proto, info.inputs(info.mode), info.happening(info.mode, info.size))
    wrap(proto, info, model.backbone.patch)
    entry = proto.metadata_props.add()
    entry.key, entry.value = "paumer", info.to_json()
    onnx.checker.check_model(proto)
    return proto


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
    """Sorting in ONNX: its TopK gives equal values in their first order, as a stable sort does.

    OpenVINO's does not, so that whole numbers, which are often equal, are told apart by place.
    """
    from onnxscript import opset18 as op

    count = op.Shape(self, start=dim, end=None if dim == -1 else dim + 1)
    if self.dtype.is_floating_point():
        return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)
    length: Any = op.Squeeze(count)
    places = op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))
    scaled = op.Mul(self, count)
    key = op.Sub(scaled, places) if descending else op.Add(scaled, places)
    _, index = op.TopK(key, count, axis=dim, largest=int(descending), sorted=1)
    return op.GatherElements(self, index, axis=dim), index


def _remainder(self: Any, other: Any) -> Any:
    """The remainder by a number that is known only when the file runs."""
    from onnxscript import opset18 as op

    return op.Mod(self, op.CastLike(other, self))


def fuse_attention(proto: "ModelProto") -> "ModelProto":
    """An ONNX graph with each attention as one operation, which ONNX Runtime and OpenVINO know.

    What is fused is what torch's exporter makes of timm's attention: softmax between two products
    whose queries, keys and values are the thirds of one linear layer, untouched but for the usual
    scale. Others, such as rotary ones, stay as they are.
    """
    from onnxscript.rewriter import pattern, rewrite

    def attention(op: Any, linear: Any, query_scale: Any, key_scale: Any, bias: Any) -> Any:
        shape = pattern.ANY_VALUE
        thirds = op.Reshape(linear, shape, _outputs=["thirds"])
        turned = op.Transpose(thirds, perm=[2, 0, 3, 1, 4])
        q, k, v = (op.Squeeze(op.Slice(turned, [i], [i + 1], [0]), [0]) for i in range(3))
        k = op.Reshape(op.Transpose(op.Reshape(k, shape), perm=[0, 2, 1]), shape)
        scores = op.Add(op.MatMul(op.Mul(q, query_scale), op.Mul(k, key_scale)), bias)
        mixed = op.MatMul(op.Softmax(scores, axis=-1), v)
        return op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), shape)

    def usual_scale(_: Any, thirds: Any, query_scale: Any, key_scale: Any, **__: object) -> bool:
        scales = [scale.const_value for scale in (query_scale, key_scale)]
        if thirds.shape is None or None in scales:
            return False
        # Each is the fourth root of 1 / head size.
        return all(abs(scale.numpy().item() ** 4 * thirds.shape[4] - 1) < 1e-4 for scale in scales)

    def fused(op: Any, linear: Any, thirds: Any, bias: Any, **_: object) -> Any:
        parts = op.Split(linear, num_outputs=3, axis=2, _outputs=3)
        how = {"num_heads": thirds.shape[3], "_domain": "com.microsoft"}
        return op.MultiHeadAttention(*parts, None, None, bias, **how)

    # Other nodes still use the shapes of some: what nothing uses any longer is removed at the end.
    rule = pattern.RewriteRule(attention, fused, usual_scale, remove_nodes=False)
    return rewrite(proto, pattern_rewrite_rules=[rule])
