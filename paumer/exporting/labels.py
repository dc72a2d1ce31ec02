"""What stands around the network in an ONNX file: pixels in, labels out.

Written in ONNX's own words, so that a program in any language needs no arithmetic of its own. The
names in the middle are those by which `inference.exported` finds the network again.
"""

from typing import TYPE_CHECKING

import numpy as np

from paumer.exporting.nodes import parse
from paumer.inference.exported import ExportInfo
from paumer.inference.graphs import INNER, NORMALISED, fill, need

if TYPE_CHECKING:
    from onnx import ModelProto

_BEFORE = """
plane = Shape <start=2, end=4> (pixels)
patch = Constant <value = int64[2] {{{patch}}}> ()
zeros = Constant <value = int64[6] {{0, 0, 0, 0, 0, 0}}> ()
over = Mod (plane, patch)
missing = Sub (patch, over)
margin = Mod (missing, patch)
margins = Concat <axis=0> (zeros, margin)
{normalised} = Pad (pixels, margins)
"""
"""Zeros added right and below to make whole patches."""

_BYTES = """
numbers = Cast <to=1> (images)
scaled = Mul (numbers, pixel_scale)
shifted = Sub (scaled, pixel_shift)
pixels = Transpose <perm=[0, 3, 1, 2]> (shifted)
"""
"""RGB bytes to what the network reads."""

_AFTER = """
padded = Add (plane, margin)
outer = Shape <start=0, end=2> ({logits})
whole = Concat <axis=0> (outer, padded)
large = Resize <mode="linear", coordinate_transformation_mode="half_pixel"> ({logits}, , , whole)
origin = Constant <value = int64[2] {{0, 0}}> ()
sides = Constant <value = int64[2] {{2, 3}}> ()
cut = Slice (large, origin, plane, sides)
asked = Greater (size, origin)
wanted = Where (asked, size, plane)
shape = Concat <axis=0> (outer, wanted)
full = Resize <mode="linear", coordinate_transformation_mode="half_pixel"> (cut, , , shape)
"""
"""Coarse logits enlarged as `inference.tiles` enlarges them, to ``size`` or the image's own."""

_OUTPUTS = {
    "labels": "best = ArgMax <axis=1, keepdims=0> (full)\nlabels = Cast <to={type}> (best)",
    "logits": "logits = Identity (full)",
    "probabilities": "probabilities = Softmax <axis=1> (full)",
}


def wrap(proto: "ModelProto", info: ExportInfo, patch: tuple[int, int]) -> None:
    """Put what other programs need around a network's graph."""
    onnx = need("onnx", "onnx")
    config, graph = info.config, proto.graph
    classes = len(config["classes"])
    kind = onnx.TensorProto.UINT8 if classes <= 256 else onnx.TensorProto.INT32
    before = _BEFORE.format(patch=f"{patch[0]}, {patch[1]}", normalised=NORMALISED)
    after = _AFTER.format(logits=INNER[0]) + _OUTPUTS[info.output].format(type=kind)
    shape: list[str | int] = ["batch", 3, *(info.size or ("height", "width"))]
    if info.pixels == "uint8":
        before = _BYTES + before
        shape = [shape[0], *shape[2:], 3]
        std = np.float32(config["std"])
        constants = {
            "pixel_scale": 1 / (255 * std),
            "pixel_shift": np.float32(config["mean"]) / std,
        }
        graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in constants.items()
        )
    else:
        before = before.replace("pixels", "images")
    pixels = onnx.TensorProto.UINT8 if info.pixels == "uint8" else onnx.TensorProto.FLOAT
    inputs = [onnx.helper.make_tensor_value_info("images", pixels, shape)]
    inputs.append(onnx.helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [2]))
    own = [item for item in graph.input if item.name != NORMALISED]
    defaults = info.inputs(info.mode) if info.free else {}
    if info.runtime != "openvino":  # To which inputs with a default are constants.
        defaults["size"] = np.zeros(2, np.int64)
    graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in defaults.items())
    outside: list[str | int] = ["batch", "label_height", "label_width"]
    if info.output != "labels":
        outside.insert(1, classes)
        kind = onnx.TensorProto.FLOAT
    outputs = [onnx.helper.make_tensor_value_info(info.output, kind, outside), *graph.output]
    fill(graph.node, [*parse(before), *graph.node, *parse(after)])
    fill(graph.input, [*inputs, *own])
    fill(graph.output, outputs)
