"""An exported network made faster for ONNX Runtime: attention as one operation, 8-bit weights."""

from pathlib import Path
from typing import Any, NamedTuple

from paumer.disk import replace_file


class Attention(NamedTuple):
    """An attention of a graph: the tensor of its three inputs side by side, and its last node."""

    source: str
    width: int
    heads: int
    end: Any


def fuse_attention(proto: Any) -> int:
    """Make each attention of an ONNX graph one operation of ONNX Runtime's; how many there were.

    What is found is softmax between two products whose queries, keys and values are the thirds of
    one linear layer, as timm's blocks have it. Others, such as rotary ones, stay as they are.
    """
    from onnx import TensorProto, helper

    graph = proto.graph
    known = _Graph(graph)
    found = [spot for node in graph.node if (spot := known.attention(node)) is not None]
    for number, (source, width, heads, end) in enumerate(found):
        thirds = [f"attention_{number}_{name}" for name in ("queries", "keys", "values")]
        sizes = helper.make_tensor(f"{thirds[0]}_sizes", TensorProto.INT64, [3], [width] * 3)
        graph.initializer.append(sizes)
        place = next(place for place, node in enumerate(graph.node) if node == end)
        split = helper.make_node("Split", [source, sizes.name], thirds, axis=2)
        one = helper.make_node(
            "MultiHeadAttention", thirds, end.output, domain="com.microsoft", num_heads=heads
        )
        graph.node.remove(end)
        graph.node.insert(place, split)
        graph.node.insert(place + 1, one)
    if found:
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        _drop_unused(graph)
    return len(found)


def quantise(proto: Any, path: Path) -> None:
    """Write a graph as a file whose linear layers multiply in 8 bits, for ONNX Runtime alone.

    Weights are rounded channel by channel, activations as they come.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    fuse_attention(proto)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        quantize_dynamic(
            proto,
            partial,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        replace_file(path, partial.read_bytes())
    finally:
        partial.unlink(missing_ok=True)


class _Graph:
    """Who makes each tensor of a graph, and who uses it."""

    def __init__(self, graph: Any) -> None:
        self.maker = {name: node for node in graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def attention(self, softmax: Any) -> Attention | None:
        """The attention around a softmax, if it is of the form that can be fused."""
        if softmax.op_type != "Softmax":
            return None
        scores = self.maker.get(softmax.input[0])
        mix = self._user(softmax, "MatMul")
        end = self._user(self._user(mix, "Transpose"), "Reshape")
        if scores is None or scores.op_type != "MatMul" or mix is None or end is None:
            return None
        thirds = [self._third(name) for name in (*scores.input, mix.input[1])]
        if None in thirds or [third[1] for third in thirds if third] != [0, 1, 2]:
            return None
        sources = {third[0] for third in thirds if third}
        source = sources.pop()
        width, scale = self._width(source), self._scale(scores)
        # Queries and keys are each multiplied by the fourth root of 1 / head size.
        heads = round(width * scale**4)
        if sources or not heads or abs(width * scale**4 - heads) > 1e-3:
            return None
        return Attention(source, width, heads, end)

    def _user(self, node: Any, kind: str) -> Any:
        """The only user of a node, if it is of that kind."""
        users = self.users.get(node.output[0], []) if node is not None else []
        return users[0] if len(users) == 1 and users[0].op_type == kind else None

    def _third(self, name: str) -> tuple[str, int] | None:
        """The tensor that queries, keys or values are cut from, and which of the three they are."""
        node, start = self.maker.get(name), None
        while node is not None and node.op_type in ("Mul", "Reshape", "Transpose"):
            node = self.maker.get(node.input[0])
        for kind in ("Squeeze", "Slice", "Transpose", "Reshape"):
            if node is None or node.op_type != kind:
                return None
            if kind == "Transpose" and list(node.attribute[0].ints) != [2, 0, 3, 1, 4]:
                return None
            start = self._number(node.input[1]) if kind == "Slice" else start
            source = node.input[0]
            node = self.maker.get(source)
        return None if start is None else (source, int(start))

    def _width(self, name: str) -> int:
        """A third of the columns that a linear layer gives; 0 if it is none."""
        inputs = self.maker[name].input if name in self.maker else ()
        sizes = [self.constants[each].dims[-1] for each in inputs if each in self.constants]
        return sizes[0] // 3 if sizes else 0

    def _scale(self, scores: Any) -> float:
        """What queries are multiplied by before the product; 0 if that is not known."""
        scaled = self.maker.get(scores.input[0])
        if scaled is None or scaled.op_type != "Mul":
            return 0.0
        return self._number(scaled.input[1]) or 0.0

    def _number(self, name: str) -> float | None:
        """The constant of that name, if it is one number."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        value = None if tensor is None else numpy_helper.to_array(tensor)
        return float(value.item()) if value is not None and value.size == 1 else None


def _drop_unused(graph: Any) -> None:
    """Take out nodes and constants that lead to no output."""
    while True:
        used = {name for node in graph.node for name in node.input}
        used |= {output.name for output in graph.output}
        idle = [node for node in graph.node if used.isdisjoint(node.output)]
        if not idle:
            break
        for node in idle:
            graph.node.remove(node)
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
