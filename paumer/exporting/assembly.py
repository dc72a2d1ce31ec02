"""Parts of a network put together as one ONNX graph, in which stages that a mode lacks are skipped.

After each block stands an ``If`` around a merging and a pause, so that one file runs in every mode
and no mode pays for what it does not ask for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paumer.exporting.nodes import Names, Nodes, parse, renamed
from paumer.inference.graphs import INNER, NORMALISED, fill, need
from paumer.model.decoders import TokenDecoder
from paumer.model.segmenter import PausingSegmenter

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_ALWAYS = """
zero = Constant <value = int64[1] {0}> ()
one = Constant <value = int64[1] {1}> ()
two = Constant <value = int64[1] {2}> ()
none = Constant <value = double[1] {0.0}> ()
all = Constant <value = double[1] {1.0}> ()
most = ReduceMax <keepdims=1> (merge_ratios)
merges = Greater (most, none)
"""
_STAGE = """
before = Constant <value = int64[1] {{{before}}}> ()
block = Constant <value = int64[1] {{{number}}}> ()
merge_ratio = Gather <axis=0> (merge_ratios, before)
pause_ratio = Gather <axis=0> (ratios, before)
more = Max (merge_ratio, pause_ratio)
stage = Greater (more, none)
"""
_COUNT = """
count = Shape <start=1, end=2> (index)
exactly = Cast <to=11> (count)
part = Mul (ratio, exactly)
whole = Cast <to=7> (part)
"""
_MERGE = """
half = Div (count, two)
gone = Min (whole, half)
some = Greater (gone, zero)
left = Sub (count, gone)
room = ConstantOfShape (left)
"""
"""As `merging.merged_count`."""
_PAUSE = """
some = Greater (whole, zero)
rest = Sub (count, whole)
least = Max (rest, one)
partly = Less (ratio, all)
left = Where (partly, least, zero)
room = ConstantOfShape (left)
"""
"""As `pausing.keep_count`."""
_FINISH = """
active = Shape <start=1, end=2> (index)
paused = Shape <start=1, end=2> (left_index)
every = Add (active, paused)
decoded = Where (exit, active, every)
room = ConstantOfShape (decoded)
"""
_SQUARE = """
tokens = Shape <start=1, end=2> (query)
shape = Concat <axis=0> (one, one, tokens, tokens)
wide = Expand (bias, shape)
"""
"""What attention adds to every row of its scores."""


class Assembly:
    """What is made of the parts of a traced graph."""

    def __init__(self, proto: "ModelProto") -> None:
        self.onnx = need("onnx", "onnx")
        self.parts: dict[str, Nodes] = {}
        inputs = [item.name for item in proto.graph.input if "." in item.name]
        owner = {name: name.partition(".")[0] for name in inputs}
        for node in proto.graph.node:
            (part,) = {owner[name] for name in node.input if owner.get(name)} or {""}
            owner |= dict.fromkeys(node.output, part)
            self.parts.setdefault(part, []).append(node)
        self.gives, self.types = dict[str, list[str]](), dict[str, int]()
        for item in proto.graph.output:
            part, _, name = item.name.partition(":")
            self.gives.setdefault(part, []).append(name)
            self.types[name] = item.type.tensor_type.elem_type

    def place(self, part: str, given: Names, label: str) -> tuple[Nodes, Names]:
        """The nodes of a part that is given some values, and the names of what they give."""
        names = {f"{part}.{name}": value for name, value in given.items()}
        nodes: Nodes = []
        for node in renamed(self.parts[part], names, label):
            fused = node.op_type == "MultiHeadAttention"
            nodes += self._attention(node, f"{node.output[0]}/") if fused else [node]
        return nodes, {name: f"{label}{part}:{name}" for name in self.gives[part]}

    def _attention(self, node: "NodeProto", label: str) -> Nodes:
        """An attention that lets patches count for several only where some are merged."""
        query, *_, bias = node.input
        names = {bias: f"{label}wide"}
        (biased,), (plain,) = (
            renamed([node], n, f"{label}{k}/") for k, n in enumerate((names, {}))
        )
        del plain.input[3:]
        wide = parse(_SQUARE, label, {"query": query, "bias": bias})
        branches = ([*wide, biased], biased.output), ([plain], plain.output)
        return [self._choice("merges", node.output, [self.onnx.TensorProto.FLOAT], *branches)]

    def _choice(
        self,
        condition: str,
        gives: Sequence[str],
        types: Sequence[int],
        *branches: tuple[Nodes, Sequence[str]],
    ) -> "NodeProto":
        helper, graphs = self.onnx.helper, {}
        for name, (nodes, outputs) in zip(("then_branch", "else_branch"), branches, strict=True):
            pairs = zip(outputs, types, strict=True)
            infos = [helper.make_tensor_value_info(output, kind, None) for output, kind in pairs]
            graphs[name] = helper.make_graph(nodes, name, [], infos)
        made: NodeProto = helper.make_node("If", [condition], gives, f"If_{gives[0]}", **graphs)
        return made

    def _perhaps(
        self, condition: str, nodes: Nodes, after: Names, state: Names, label: str
    ) -> tuple["NodeProto", Names]:
        """Nodes that run where a condition holds, and the state behind them."""
        same = {name: f"{label}same/{name}" for name in after}
        make = self.onnx.helper.make_node
        keep = [make("Identity", [state[n]], [s], f"Identity_{s}") for n, s in same.items()]
        gives, types = {n: label + n for n in after}, [self.types[n] for n in after]
        branches = (nodes, list(after.values())), (keep, list(same.values()))
        return self._choice(condition, list(gives.values()), types, *branches), gives

    def stage(self, number: int, state: Names) -> tuple[Nodes, Names]:
        """What may happen after a block, and the state behind it."""
        at = f"{number}/"
        nodes, inner = list[Any](), dict(state)
        changed = dict[str, str]()
        for part, text in (("merge", _MERGE), ("pause", _PAUSE)):
            label = f"{at}{part}/"
            nodes += parse(_COUNT + text, label, {**inner, "ratio": f"{at}{part}_ratio"})
            given = {**inner, "block": f"{at}block", "room": f"{label}room"}
            node, after = self._perhaps(
                f"{label}some", *self.place(part, given, label), inner, f"{label}after/"
            )
            nodes.append(node)
            changed |= after
            inner |= after
        node, after = self._perhaps(f"{at}stage", nodes, changed, state, f"{at}after/")
        return [*parse(_STAGE.format(before=number - 1, number=number), at), node], {
            **state,
            **after,
        }


def assemble(proto: "ModelProto", model: PausingSegmenter, kinds: Sequence[int]) -> None:
    """Turn the graph of a network's parts into one that runs images in any mode.

    ``kinds`` says for each block which one was traced for it.
    """
    parts, graph, onnx = Assembly(proto), proto.graph, need("onnx", "onnx")
    nodes: Nodes = [*parts.parts[""], *parse(_ALWAYS)]
    state: Names = {name: f"start:{name}" for name in parts.gives["start"]}
    weights: dict[str, np.ndarray] = {}
    for number, kind in enumerate(kinds, 1):
        own = model.backbone.blocks[number - 1].state_dict()
        names = {name: f"{number}/{name}" for name in own}
        weights |= {names[name]: value.cpu().numpy() for name, value in own.items()}
        made, after = parts.place(f"block{kind}", {**state, **names}, f"{number}/")
        staged, state = parts.stage(number, {**state, **after})
        nodes += [*made, *staged]
    given = dict(state)
    if isinstance(model.decoder, TokenDecoder):
        nodes += parse(_FINISH, "finish/", state)
        given["room"] = "finish/room"
    made, after = parts.place("finish", given, "")
    make = onnx.helper.make_node
    nodes += [*made, *(make("Identity", [after[name]], [name], name) for name in INNER)]
    kept = []
    for node in nodes:
        if node.op_type == "Transpose" and node.input[0] in weights:
            turned = np.transpose(weights[node.input[0]], node.attribute[0].ints)
            weights[node.output[0]] = np.ascontiguousarray(turned)
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input}
    constants = {name: value for name, value in weights.items() if name in used}
    double, types = onnx.TensorProto.DOUBLE, {item.name: item for item in graph.input}
    ratios = [
        onnx.helper.make_tensor_value_info(name, double, [model.backbone.depth])
        for name in ("ratios", "merge_ratios")
    ]
    inputs = [types[NORMALISED], *ratios, types["neighbours"], types["protect"]]
    if isinstance(model.decoder, TokenDecoder):
        inputs.append(onnx.helper.make_tensor_value_info("exit", onnx.TensorProto.BOOL, []))
    graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in constants.items())
    outputs = {item.name: item for item in graph.output}
    for name in INNER:
        outputs[after[name]].name = name
    fill(graph.node, kept)
    fill(graph.input, inputs)
    fill(graph.output, [item for item in graph.output if item.name in INNER])
