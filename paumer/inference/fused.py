"""An exported network made faster for ONNX Runtime: each attention as one operation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

QUERIES = ("Mul", "Squeeze", "Slice", "Transpose", "Reshape")
KEYS = ("Mul", "Reshape", "Transpose", "Reshape", "Squeeze", "Slice", "Transpose", "Reshape")
VALUES = ("Squeeze", "Slice", "Transpose", "Reshape")
"""What makes each of the three, from the last operation back to the one that they share."""


def fuse_attention(proto: "ModelProto") -> int:
    """Make each attention of an ONNX graph one operation of ONNX Runtime's; how many there were.

    What is found is what torch's exporter makes of timm's attention: softmax between two products
    whose queries, keys and values are the thirds of one linear layer, untouched but for the usual
    scale. Others, such as rotary ones, stay as they are.
    """
    from onnx import TensorProto, helper

    graph = proto.graph
    known = _Graph(graph)
    found = [spot for node in graph.node if (spot := known.attention(node)) is not None]
    for number, (source, heads, size, end) in enumerate(found):
        thirds = [f"attention_{number}_{name}" for name in ("queries", "keys", "values")]
        widths = [heads * size] * 3
        sizes = helper.make_tensor(f"{thirds[0]}_sizes", TensorProto.INT64, [3], widths)
        graph.initializer.append(sizes)
        index = list(graph.node).index(end)
        split = helper.make_node("Split", [source, sizes.name], thirds, axis=2)
        fused = helper.make_node(
            "MultiHeadAttention", thirds, end.output, domain="com.microsoft", num_heads=heads
        )
        graph.node[index].CopyFrom(fused)
        graph.node.insert(index, split)
    if found:
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        _drop_unused(graph)
    return len(found)


class _Graph:
    """The node that makes each tensor of a graph, and the nodes that use it."""

    def __init__(self, graph: Any) -> None:
        self.maker = {name: node for node in graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def attention(self, softmax: Any) -> tuple[str, int, int, Any] | None:
        """The attention around a softmax, if it is of the form that can be fused.

        That is the tensor of queries, keys and values, the number and size of heads, the last node.
        """
        if softmax.op_type != "Softmax" or _attribute(softmax, "axis") != -1:
            return None
        scores = self.maker.get(softmax.input[0])
        mix = self._user(softmax, "MatMul")
        turned = self._user(mix, "Transpose")
        end = self._user(turned, "Reshape")
        if scores is None or scores.op_type != "MatMul" or end is None:
            return None
        queries = self._made_by(scores.input[0], QUERIES)
        keys = self._made_by(scores.input[1], KEYS)
        values = self._made_by(mix.input[1], VALUES)
        if not queries or not keys or not values:
            return None
        shape = self._numbers(values[-1].input[1])
        fits = (
            _attribute(turned, "perm") == [0, 2, 1, 3]
            and _attribute(keys[2], "perm") == [0, 2, 1]
            and queries[-1].output == keys[-1].output == values[-1].output
            and [self._third(nodes) for nodes in (queries, keys, values)] == [0, 1, 2]
            and len(shape) == 5
            and shape[2] == 3
            and all(self._is_usual_scale(nodes[0], shape[4]) for nodes in (queries, keys))
        )
        return (values[-1].input[0], int(shape[3]), int(shape[4]), end) if fits else None

    def _user(self, node: Any, kind: str) -> Any:
        """The only user of a node, if it is of that kind."""
        users = self.users.get(node.output[0], []) if node is not None else []
        return users[0] if len(users) == 1 and users[0].op_type == kind else None

    def _made_by(self, name: str, kinds: Sequence[str]) -> list[Any]:
        """The nodes that make a tensor, from the last one back, if they are of those kinds."""
        nodes: list[Any] = []
        for kind in kinds:
            node = self.maker.get(name)
            if node is None or node.op_type != kind:
                return []
            nodes.append(node)
            name = node.input[0]
        return nodes

    def _third(self, nodes: Sequence[Any]) -> float | None:
        """Which of the three a chain cuts out along the first axis of (3, b, h, n, d)."""
        squeeze, cut, turned, _ = nodes[-4:]
        if _attribute(turned, "perm") != [2, 0, 3, 1, 4] or len(cut.input) != 4:
            return None
        if self._numbers(squeeze.input[-1]) != (0,) or self._numbers(cut.input[3]) != (0,):
            return None
        start, end = self._numbers(cut.input[1]), self._numbers(cut.input[2])
        return start[0] if len(start) == 1 and end == (start[0] + 1,) else None

    def _is_usual_scale(self, node: Any, size: float) -> bool:
        """Whether queries or keys are multiplied by the fourth root of 1 / head size."""
        scale = self._numbers(node.input[1])
        return len(scale) == 1 and abs(scale[0] ** 4 * size - 1) < 1e-4

    def _numbers(self, name: str) -> tuple[float, ...]:
        """The numbers of a constant, or of some put together; what is not known is NaN."""
        from onnx import numpy_helper

        if name in self.constants:
            return tuple(numpy_helper.to_array(self.constants[name]).ravel().tolist())
        node = self.maker.get(name)
        if node is None or node.op_type != "Concat":
            return (math.nan,)
        return tuple(number for part in node.input for number in self._numbers(part))


def _attribute(node: Any, name: str) -> Any:
    """The value of a node's attribute, None if it has none of that name."""
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


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
