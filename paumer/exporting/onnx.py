"""ONNX files of a network: any image size and mode in one, attention fused, in 32 or 8 bits."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paumer.disk import replace_file
from paumer.exporting.labels import wrap
from paumer.exporting.traced import describe, trace
from paumer.inference.exported import NORMALISED, ExportInfo, need
from paumer.mode import UNPAUSED, Mode
from paumer.model.segmenter import PausingSegmenter

if TYPE_CHECKING:
    from onnx import ModelProto


def export_onnx(
    model: PausingSegmenter, path: Path, mode: Mode = UNPAUSED, rounded: bool = False
) -> None:
    """Write an ONNX file for any image size and, but for merging, any mode; ``mode`` is its first.

    ``rounded`` files have their linear layers in 8 bits, for ONNX Runtime alone.
    """
    info = describe(model, mode)
    proto = make_onnx(model, info)
    replace_file(path, round_as_it_comes(proto) if rounded else proto.SerializeToString())


def make_onnx(model: PausingSegmenter, info: ExportInfo) -> "ModelProto":
    """The ONNX graph of a file that says ``info`` of itself."""
    onnx = need("onnx", "onnx")
    need("onnxscript", "onnx")
    program = trace(model, info)
    with torch.inference_mode(False), _only_errors("onnx_ir"):
        made = torch.onnx.export(
            program,
            input_names=[NORMALISED, *info.inputs(info.mode)],
            output_names=info.outputs,
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
    """Sorting in ONNX: its TopK gives equal values in their first order, as a stable sort does."""
    from onnxscript import opset18 as op

    count = op.Shape(self, start=dim, end=None if dim == -1 else dim + 1)
    return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)


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

    def attention(op: Any, linear: Any, query_scale: Any, key_scale: Any) -> Any:
        shape = pattern.ANY_VALUE
        thirds = op.Reshape(linear, shape, _outputs=["thirds"])
        turned = op.Transpose(thirds, perm=[2, 0, 3, 1, 4])
        q, k, v = (op.Squeeze(op.Slice(turned, [i], [i + 1], [0]), [0]) for i in range(3))
        k = op.Reshape(op.Transpose(op.Reshape(k, shape), perm=[0, 2, 1]), shape)
        scores = op.MatMul(op.Mul(q, query_scale), op.Mul(k, key_scale))
        mixed = op.MatMul(op.Softmax(scores, axis=-1), v)
        return op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), shape)

    def usual_scale(_: Any, thirds: Any, query_scale: Any, key_scale: Any, **__: object) -> bool:
        scales = [scale.const_value for scale in (query_scale, key_scale)]
        if thirds.shape is None or None in scales:
            return False
        # Each is the fourth root of 1 / head size.
        return all(abs(scale.numpy().item() ** 4 * thirds.shape[4] - 1) < 1e-4 for scale in scales)

    def fused(op: Any, linear: Any, thirds: Any, **_: object) -> Any:
        parts = op.Split(linear, num_outputs=3, axis=2, _outputs=3)
        heads = thirds.shape[3]
        return op.MultiHeadAttention(*parts, num_heads=heads, _domain="com.microsoft")

    # Other nodes still use the shapes of some: what nothing uses any longer is removed at the end.
    rule = pattern.RewriteRule(attention, fused, usual_scale, remove_nodes=False)
    return rewrite(proto, pattern_rewrite_rules=[rule])


def round_as_it_comes(proto: "ModelProto") -> bytes:
    """A file whose linear layers multiply in 8 bits, for ONNX Runtime alone.

    Weights are rounded channel by channel, activations as they come.
    """
    onnx = need("onnx", "onnx")
    need("onnxruntime", "onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _only_errors("root"):
        rounded = Path(folder) / "rounded.onnx"
        quantize_dynamic(
            proto,
            rounded,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Sums of two products overflow 16 bits on processors without instructions for them.
            reduce_range=True,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        return rounded.read_bytes()
