"""Linear layers in 8 bits: activations by ranges seen on images, or as they come."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paumer.exporting.nodes import Nodes, parse
from paumer.inference.exported import start_onnxruntime
from paumer.inference.graphs import fill, inner_part, need

if TYPE_CHECKING:
    from onnx import ModelProto

Ranges = Mapping[str, tuple[float, float]]
"""The lowest and the highest value of what goes into each linear layer."""

Rounding = Callable[["ModelProto"], "ModelProto"]
"""A graph in, the same in 8 bits out."""

_TOP = 63  # Sums of two products with 8 bits overflow on processors without instructions for them.

_AS_IT_COMES = """
bytes, scale, zero = DynamicQuantizeLinear (given)
sums = MatMulInteger (bytes, weight, zero, weight_zero)
numbers = Cast <to=1> (sums)
scales = Mul (scale, weight_scale)
result = Mul (numbers, scales)
"""
_BY_RANGE = """
bytes = QuantizeLinear (given, scale, zero)
numbers = DequantizeLinear (bytes, scale, zero)
weights = DequantizeLinear <axis=1> (weight, weight_scale, weight_zero)
result = MatMul (numbers, weights)
"""


def find_ranges(proto: "ModelProto", feeds: Iterable[Mapping[str, np.ndarray]]) -> Ranges:
    """What goes into each linear layer when the network runs on some images, each in a mode."""
    onnx, inner = need("onnx", "onnx"), inner_part(proto)
    names = list(dict.fromkeys(node.input[0] for node in _layers(proto)))
    outputs = [f"{name}/{end}" for name in names for end in ("ReduceMin", "ReduceMax")]
    make = onnx.helper.make_node
    for output in outputs:
        name, _, operation = output.rpartition("/")
        inner.graph.node.append(make(operation, [name], [output], output, keepdims=0))
    fill(inner.graph.output, [onnx.helper.make_tensor_value_info(o, 1, []) for o in outputs])
    session = start_onnxruntime(Path("calibration"), inner.SerializeToString())
    seen = np.array([session.run(outputs, feed) for feed in feeds])
    lows, highs = seen[:, ::2].min(0), seen[:, 1::2].max(0)
    return {n: (float(a), float(b)) for n, a, b in zip(names, lows, highs, strict=True)}


def round_layers(proto: "ModelProto", ranges: Ranges | None = None) -> "ModelProto":
    """A graph whose linear layers multiply in 8 bits, for ONNX Runtime; with ranges for OpenVINO.

    Weights are rounded channel by channel. Without ranges activations are rounded as they come.
    """
    onnx = need("onnx", "onnx")
    new: ModelProto = type(proto).FromString(proto.SerializeToString())
    layers, nodes = {node.name for node in _layers(new)}, list[Any]()
    weights = {item.name: item for item in new.graph.initializer}
    for node in new.graph.node:
        if node.name not in layers:
            nodes.append(node)
            continue
        (given, weight), (result,) = node.input, node.output
        values = onnx.numpy_helper.to_array(weights.pop(weight))
        scale = np.maximum(np.abs(values).max(0), np.float32(1e-8)) / np.float32(_TOP)
        constants = {
            "weight": np.round(values / scale).astype(np.int8),
            "weight_scale": scale,
            "weight_zero": np.zeros(len(scale), np.int8),
        }
        if ranges is not None:
            low, high = min(ranges[given][0], 0.0), max(ranges[given][1], 0.0)
            step = max((high - low) / 255, 1e-8)
            constants |= {"scale": np.float32(step), "zero": np.uint8(round(-low / step))}
        names = {name: f"{result}/{name}" for name in constants} | {"given": given}
        made: Nodes = parse(_AS_IT_COMES if ranges is None else _BY_RANGE, f"{result}/", names)
        made[-1].output[0] = result
        nodes += made
        for name, value in constants.items():
            weights[names[name]] = onnx.numpy_helper.from_array(value, names[name])
    fill(new.graph.node, nodes)
    fill(new.graph.initializer, weights.values())
    return new


def _layers(proto: "ModelProto") -> Nodes:
    """Products of activations and the weights of one layer."""
    weights = {item.name for item in proto.graph.initializer if len(item.dims) == 2}
    products = (node for node in proto.graph.node if node.op_type == "MatMul")
    return [node for node in products if node.input[1] in weights]
