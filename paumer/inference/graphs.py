"""ONNX graphs taken apart: the network inside a file, and that network in one mode."""

from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

NORMALISED, INNER = "normalised", ("coarse_logits", "paused_after", "merged_after")
"""Names of what goes into a file's inner part, and of what comes out."""


def need(module: str, extra: str) -> ModuleType:
    """An optional library, or an error that says what to install."""
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'paumer[{extra}]'") from error


def inner_part(proto: "ModelProto") -> "ModelProto":
    """The graph between the normalised images and the coarse logits."""
    onnx = need("onnx", "onnx")
    new: ModelProto = type(proto).FromString(proto.SerializeToString())
    graph, nodes, needed = new.graph, list[Any](), {*INNER}
    for node in reversed(graph.node):
        if needed & set(node.output) and NORMALISED not in node.output:
            nodes.insert(0, node)
            needed |= _reads(node)
    shape = onnx.helper.make_tensor_value_info(NORMALISED, 1, ["batch", 3, "height", "width"])
    fill(graph.node, nodes)
    fill(graph.input, [shape, *(item for item in graph.input if item.name in needed - {"images"})])
    fill(graph.output, [item for item in graph.output if item.name in INNER])
    fill(graph.initializer, [item for item in graph.initializer if item.name in needed])
    return new


def _reads(node: "NodeProto") -> set[str]:
    """What a node takes, with what the graphs inside it take and give."""
    inner = [item for attribute in node.attribute for item in attribute.g.node]
    given = {item.name for attribute in node.attribute for item in attribute.g.output}
    return {name for name in node.input if name} | given.union(*map(_reads, inner))


def in_mode(
    proto: "ModelProto", values: Mapping[str, np.ndarray], happening: Collection[str]
) -> "ModelProto":
    """A graph that asks nothing: some inputs are constants, and of each ``If`` one branch is left.

    ``happening`` names the conditions that hold.
    """
    onnx = need("onnx", "onnx")
    new: ModelProto = type(proto).FromString(proto.SerializeToString())
    graph = new.graph
    fill(graph.node, list(_decided(graph.node, happening)))
    for part in (graph.input, graph.initializer):
        fill(part, [item for item in part if item.name not in values])
    constants = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph.initializer.extend(constants)
    return new


def _decided(nodes: "Iterable[NodeProto]", happening: Collection[str]) -> "Iterable[NodeProto]":
    make = need("onnx", "onnx").helper.make_node
    for node in nodes:
        if node.op_type != "If":
            yield node
            continue
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        branch = branches["then_branch" if node.input[0] in happening else "else_branch"]
        yield from _decided(branch.node, happening)
        for inside, outside in zip(branch.output, node.output, strict=True):
            yield make("Identity", [inside.name], [outside], f"Identity_{outside}")


def fill(part: Any, items: Iterable[Any]) -> None:
    """Replace what a repeated field holds, perhaps by some of the same."""
    kept = [type(item).FromString(item.SerializeToString()) for item in items]
    del part[:]
    part.extend(kept)
