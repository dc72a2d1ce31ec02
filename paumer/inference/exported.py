"""Exported networks: what a file says of itself, and functions that run it.

With ``exporting`` the only module that knows onnx and the runtimes. What the predictor needs of a
file is its inner part, from normalised images to coarse logits: all engines share its path. What
other programs need stands around it in the same file: pixels in, labels out.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, cast
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float

from paumer.classes import distinct_colours
from paumer.disk import replace_file
from paumer.inference.programs import open_program
from paumer.mode import Mode, check_runnable
from paumer.pause_config import Threshold
from paumer.untrusted import quoted, shorten

if TYPE_CHECKING:
    from onnx import ModelProto

Runner = Callable[[Float[np.ndarray, "b 3 h w"], Mode], tuple[np.ndarray, ...]]
"""Images and a mode in; what the file's ``outputs`` name out."""

_Infer = Callable[[dict[str, np.ndarray]], list[np.ndarray]]

FORMAT = "paumer 3"
"""The version of what files say of themselves."""

SUFFIXES = (".onnx", ".pt2")
"""How the names of exported files end."""

NORMALISED, INNER = "normalised", ("coarse_logits", "paused_after", "merged_after")
"""Names of what goes into a file's inner part, and of what comes out, the last where it merges."""

_KINDS: dict[str, tuple[type, ...]] = {
    "config": (dict,),
    "points": (dict,),
    "free": (bool,),
    "depth": (int,),
    "size": (list, type(None)),
}
_DEEPEST = 1000
_SHAPES = 16  # OpenVINO keeps so many images' shapes and modes prepared.


@dataclass(frozen=True, kw_only=True)
class ExportInfo:
    """What an exported file says of itself: how it was made, and what it takes and gives.

    A ``free`` file runs in all modes that neither merge nor let all patches leave: inputs say the
    ratio after each of ``depth`` blocks and the rest, and ``mode`` is what they are where none are
    given. Others run in ``mode`` alone. ``size`` (height, width) is that of all images; None takes
    any. ``points`` are the model's operating points. ``pixels`` and ``output`` are what other
    programs give and get.
    """

    config: dict[str, Any]
    mode: Mode
    free: bool
    depth: int
    size: tuple[int, int] | None = None
    points: dict[str, Any] = field(default_factory=dict)
    runtime: str = "onnx"
    pixels: str = "uint8"
    output: str = "labels"

    def inputs(self, mode: Mode) -> dict[str, np.ndarray]:
        """The inputs beside the images by which a file runs in a mode."""
        if not self.free:
            return {}
        ratios, classes = np.zeros(self.depth), self.config["classes"]
        for block, ratio in mode.pause.stages:
            ratios[block - 1] = cast(float, ratio)
        protect = np.array([name in mode.protect for name in classes], np.float32)
        values = {"ratios": ratios, "neighbours": np.array(mode.criterion == "neighbours")}
        values["protect"] = protect
        if self.config["decoder"] != "pup":
            values["exit"] = np.array(mode.early_exit)
        return values

    @property
    def outputs(self) -> list[str]:
        """What the inner part gives: coarse logits, the blocks where patches paused, and merged."""
        return list(INNER if self.mode.merge else INNER[:2])

    @property
    def modes(self) -> dict[str, Mode]:
        """The modes of the operating points that the file can run."""
        modes = {name: Mode.parse(point["mode"]) for name, point in self.points.items()}
        return {name: mode for name, mode in modes.items() if self.runs(mode)}

    def runs(self, mode: Mode) -> bool:
        """Whether the file can run the mode."""
        try:
            self.check(mode)
        except ValueError:
            return False
        return True

    def check(self, mode: Mode) -> None:
        """Raise unless the file can run the mode."""
        check_exportable(mode)
        mode = replace(mode, size=None)
        if not self.free and mode != self.mode:
            raise ValueError(f'this file runs in mode "{self.mode}" alone, not in "{mode}"')
        if self.free and (mode.merge or mode.pause.leaves):
            what = "merge" if mode.merge else "let all patches leave"
            raise ValueError(
                f'this file cannot {what} ("{mode}"): export the model with that --mode'
            )

    def to_json(self) -> str:
        """As text, for the file's metadata, with what other programs would have to compute."""
        config = self.config
        named = {"none": Mode(), **self.modes} if self.free else {}
        modes = {
            name: {n: value.tolist() for n, value in self.inputs(mode).items()}
            | ({"short_side": mode.size} if mode.size else {})
            for name, mode in named.items()
        }
        more = {
            "modes": modes,
            "short_side": config.get("short_side"),
            "trained_side": config.get("trained_side"),
            "colours": config.get("colours") or distinct_colours(len(config["classes"])),
        }
        return json.dumps({"format": FORMAT, **vars(self), "mode": str(self.mode), **more})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError("it was exported by another version of paumer: export it again")
        values = {item.name: values.get(item.name) for item in fields(cls)}
        sides = values["size"] or []
        for name, value in values.items():
            if type(value) not in _KINDS.get(name, (str,)):
                raise ValueError(f"its {name} cannot be {quoted(value)}")
        if not 0 < values["depth"] <= _DEEPEST:
            raise ValueError(f"its depth cannot be {values['depth']}")
        if sides and not (len(sides) == 2 and all(type(n) is int and n > 0 for n in sides)):
            raise ValueError(f"its size cannot be {quoted(sides)}")
        return cls(**{**values, "mode": Mode.parse(values["mode"]), "size": tuple(sides) or None})


def check_exportable(mode: Mode) -> None:
    """Raise unless a file can run the mode."""
    check_runnable(mode)
    if any(isinstance(amount, Threshold) for _, amount in mode.pause.stages):
        raise ValueError(f'an exported file takes ratios, not thresholds ("{mode}")')


def is_exported(name: str | Path) -> bool:
    """Whether a name is that of an exported file."""
    return Path(name).suffix in SUFFIXES and Path(name).is_file()


def open_exported(
    path: Path, runtime: str | None = None, threads: int | None = None
) -> tuple[ExportInfo, Runner]:
    """What an exported file says of itself, and a function that runs its inner part.

    ``runtime`` is onnx or openvino; None is the one that it was exported for.
    """
    if not path.is_file():
        raise FileNotFoundError(f'there is no exported file "{path}": make it with paumer export')
    program = path.suffix == ".pt2"
    info, run = _open_program(path) if program else _open_onnx(path, runtime, threads)

    def runner(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        try:
            return run(images, mode)
        except Exception as error:  # Runtimes raise classes of their own.
            raise ValueError(f'cannot run "{path}": {shorten(str(error))}') from error

    return info, runner


def _open_onnx(path: Path, runtime: str | None, threads: int | None) -> tuple[ExportInfo, Runner]:
    proto, info = read_onnx(path)
    inner = inner_part(proto)
    start = _openvino if (runtime or info.runtime) == "openvino" else _onnxruntime
    run = start(path, inner, threads)
    # Activations are rounded together: images run one by one, and none depends on the others.
    rounded = any(node.op_type == "DynamicQuantizeLinear" for node in proto.graph.node)

    def runner(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        more = info.inputs(mode)
        parts = np.split(images, len(images)) if rounded else [images]
        answers = [run({NORMALISED: part, **more}) for part in parts]
        return tuple(np.concatenate(each) for each in zip(*answers, strict=True))

    return info, runner


def _open_program(path: Path) -> tuple[ExportInfo, Runner]:
    notes = {"paumer.json": ""}
    try:
        with mock.patch.dict(os.environ, TORCH_FORCE_WEIGHTS_ONLY_LOAD="1"):  # Pickles run no code.
            program = torch.export.load(open_program(path), extra_files=notes)
            module = program.module(check_guards=False)
    except Exception as error:  # The reader raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot read "{path}": {shorten(str(error))}') from error
    info = _read_info(path, notes["paumer.json"])

    def run(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        more = {name: torch.from_numpy(value) for name, value in info.inputs(mode).items()}
        with torch.inference_mode():
            return tuple(part.numpy() for part in module(torch.from_numpy(images), **more))

    return info, run


def _onnxruntime(path: Path, proto: "ModelProto", threads: int | None) -> _Infer:
    session = start_onnxruntime(path, proto.SerializeToString(), threads)
    names = [item.name for item in proto.graph.output]
    return lambda inputs: session.run(names, inputs)


def start_onnxruntime(path: Path, content: bytes, threads: int | None = None) -> Any:
    """A session of ONNX Runtime on the CPU."""
    runtime = need("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # It warns of inputs that have a default.
    if threads:
        options.intra_op_num_threads = threads
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The runtime raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot run "{path}": {shorten(str(error))}') from error


def _openvino(_: Path, proto: "ModelProto", threads: int | None) -> _Infer:
    """OpenVINO is fast where it knows all shapes: it prepares each shape and mode it meets."""
    openvino = need("openvino", "openvino")
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    core, lock, ready = openvino.Core(), Lock(), dict[object, Any]()

    def infer(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        images = inputs[NORMALISED]
        more = {name: value for name, value in inputs.items() if name != NORMALISED}
        key = images.shape, *(value.tobytes() for value in more.values())
        with lock:  # The next run writes over what this one gave.
            if key not in ready:
                if len(ready) >= _SHAPES:
                    ready.clear()
                model = core.read_model(with_inputs(proto, more).SerializeToString())
                model.reshape({NORMALISED: list(images.shape)})
                compiled = core.compile_model(model, "CPU", settings)
                ready[key] = compiled.create_infer_request()
            results = ready[key].infer({NORMALISED: images})
            return [results[item.name].copy() for item in proto.graph.output]

    return infer


def with_inputs(proto: "ModelProto", values: Mapping[str, np.ndarray]) -> "ModelProto":
    """An ONNX graph in which some inputs have become constants."""
    onnx = need("onnx", "onnx")
    new = type(proto)()
    new.CopyFrom(proto)
    for part in (new.graph.input, new.graph.initializer):
        kept = [item for item in part if item.name not in values]
        del part[:]
        part.extend(kept)
    constants = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    new.graph.initializer.extend(constants)
    return new


def inner_part(proto: "ModelProto") -> "ModelProto":
    """The graph between the normalised images and the coarse logits."""
    onnx = need("onnx", "onnx")
    nodes, needed = [], {*INNER}
    for node in reversed(proto.graph.node):
        if needed & set(node.output) and NORMALISED not in node.output:
            nodes.append(node)
            needed |= {name for name in node.input if name}
            for attribute in node.attribute:
                needed |= {name for inner in attribute.g.node for name in inner.input}
    new = type(proto)()
    new.CopyFrom(proto)
    graph = new.graph
    shape = onnx.helper.make_tensor_value_info(NORMALISED, 1, ["batch", 3, "height", "width"])
    inputs = [shape, *(item for item in graph.input if item.name in needed - {"images"})]
    for part, kept in (
        (graph.node, nodes[::-1]),
        (graph.input, inputs),
        (graph.output, [item for item in graph.output if item.name in INNER]),
        (graph.initializer, [item for item in graph.initializer if item.name in needed]),
    ):
        kept = [type(item).FromString(item.SerializeToString()) for item in kept]
        del part[:]
        part.extend(kept)
    del graph.value_info[:]
    return new


def read_onnx(path: Path) -> tuple["ModelProto", ExportInfo]:
    """The graph of an ONNX file, and what it says of itself."""
    onnx = need("onnx", "onnx")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # The reader raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot read "{path}": {shorten(str(error))}') from error
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    return proto, _read_info(path, notes.get("paumer", ""))


def keep_points(path: Path, points: Mapping[str, Mapping[str, object]]) -> None:
    """Keep operating points, as JSON values, in an ONNX file beside those of other names."""
    proto, info = read_onnx(path)
    text = replace(info, points={**info.points, **points}).to_json()
    for entry in proto.metadata_props:
        entry.value = text if entry.key == "paumer" else entry.value
    replace_file(path, proto.SerializeToString())


def _read_info(path: Path, text: str) -> ExportInfo:
    if not text:
        raise ValueError(f'"{path}" was not made by paumer export: it does not say what it takes')
    try:
        return ExportInfo.from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'cannot use "{path}": {shorten(str(error))}') from error


def need(module: str, extra: str) -> ModuleType:
    """An optional library, or an error that says what to install."""
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'paumer[{extra}]'") from error
