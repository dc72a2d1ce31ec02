"""ONNX nodes written as text, and copied under other names."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paumer.inference.graphs import need

if TYPE_CHECKING:
    from onnx import NodeProto

Nodes = list[Any]
Names = Mapping[str, str]
"""The name in the graph of each part of a state."""


def parse(text: str, label: str = "", names: Names = MappingProxyType({})) -> Nodes:
    """Nodes written in ONNX's own words, renamed."""
    graph = need("onnx", "onnx").parser.parse_graph(f"part () => () {{{text}}}")
    return renamed(graph.node, names, label)


def renamed(nodes: "Sequence[NodeProto]", names: Names, label: str) -> Nodes:
    """Copies of nodes with other names for some values; what they make begins with a label."""
    names, copies = dict(names), []
    for node in nodes:
        copy = type(node).FromString(node.SerializeToString())
        copy.input[:] = [names.get(name, name) for name in node.input]
        names |= {name: label + name for name in node.output if name}
        copy.output[:] = [names.get(name, "") for name in node.output]
        copy.name = f"{node.op_type}_{copy.output[0]}"
        copies.append(copy)
    return copies
