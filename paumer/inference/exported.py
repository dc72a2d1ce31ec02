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
from typing import TYPE_CHECKING, Any, Self, cast, get_type_hints
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float

from paumer.arguments import fits
from paumer.classes import distinct_colours
from paumer.disk import replace_file
from paumer.inference.graphs import INNER, NORMALISED, in_mode, inner_part, need
from paumer.inference.programs import open_program
from paumer.mode import Mode, check_runnable
from paumer.model.walk import active_counts
from paumer.pause_config import Threshold
from paumer.untrusted import quoted, shorten

if TYPE_CHECKING:
    from onnx import ModelProto

Runner = Callable[[Float[np.ndarray, "b 3 h w"], Mode], tuple[np.ndarray, ...]]
"""Images and a mode in; coarse logits, and the blocks where patches paused and merged, out."""

FORMAT = "paumer 4"
"""The version of what files say of themselves."""

SUFFIXES = (".onnx", ".pt2")
"""How the names of exported files end."""

_DEEPEST = 1000
_SHAPES = 16  # OpenVINO keeps so many images' shapes and modes prepared.


@dataclass(frozen=True, kw_only=True)
class ExportInfo:
    """What an exported file says of itself: how it was made, and what it takes and gives.

    A ``free`` file runs in all modes: inputs say the ratios after each of ``depth`` blocks and the
    rest, and ``mode`` is what they are where none are given; programs cannot merge. Others run in
    ``mode`` alone. ``size`` (height, width) is that of all images; None takes any. ``patch`` is the
    network's. ``points`` are the model's operating points. ``pixels`` and ``output`` are what other
    programs give and get.
    """

    config: dict[str, Any]
    mode: Mode
    depth: int
    patch: tuple[int, int]
    size: tuple[int, int] | None = None
    points: dict[str, Any] = field(default_factory=dict)
    runtime: str = "onnx"
    pixels: str = "uint8"
    output: str = "labels"

    @property
    def free(self) -> bool:
        """Whether inputs say the mode; OpenVINO is fast where they are constants."""
        return self.size is None and self.runtime != "openvino"

    def inputs(self, mode: Mode) -> dict[str, np.ndarray]:
        """The values beside the images that say a mode."""
        values, classes = dict[str, np.ndarray](), self.config["classes"]
        for name, stages in (("ratios", mode.pause.stages), ("merge_ratios", mode.merge.stages)):
            values[name] = np.zeros(self.depth)
            for block, ratio in stages:
                values[name][block - 1] = cast(float, ratio)
        values["neighbours"] = np.array(mode.criterion == "neighbours")
        values["protect"] = np.array([name in mode.protect for name in classes], np.float32)
        if self.config["decoder"] != "pup":
            values["exit"] = np.array(mode.early_exit)
        if self.runtime == "program":
            del values["merge_ratios"]
        return values

    def happening(self, mode: Mode, size: tuple[int, int] | None) -> set[str]:
        """The conditions in a graph that hold in a mode, for images of one size or large ones."""
        rows, columns = (1 << 12, 1 << 12) if size is None else size
        patches = (rows // self.patch[0]) * (columns // self.patch[1])
        found = {"merges"} if mode.merge else set[str]()
        for block, merges, left in active_counts(patches, mode):
            if left < patches:
                found |= {f"{block}/stage", f"{block}/{'merge' if merges else 'pause'}/some"}
            patches = left
        return found

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
        if self.runtime == "program" and (mode.merge or mode.pause.leaves):
            what = "merge" if mode.merge else "let all patches leave"
            raise ValueError(f'a torch.export program cannot {what} ("{mode}"): export to ONNX')

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
        for name, kind in {**get_type_hints(cls), "mode": str}.items():
            value = values[name]
            if isinstance(value, list):  # Two sides, which JSON keeps as a list.
                value = values[name] = tuple(value)
            if not fits(value, kind) or (isinstance(value, tuple) and min(value) < 1):
                raise ValueError(f"its {name} cannot be {quoted(value)}")
        if not 0 < values["depth"] <= _DEEPEST:
            raise ValueError(f"its depth cannot be {values['depth']}")
        return cls(**{**values, "mode": Mode.parse(values["mode"])})


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
    start = _openvino if (runtime or info.runtime) == "openvino" else _onnxruntime
    # Activations are rounded together: images run one by one, and none depends on the others.
    rounded = any(node.op_type == "DynamicQuantizeLinear" for node in proto.graph.node)
    run = start(path, inner_part(proto), info, threads)

    def runner(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        parts = np.split(images, len(images)) if rounded else [images]
        answers = [run(part, mode) for part in parts]
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
        given = info.inputs(mode) if info.free else {}
        more = {name: torch.from_numpy(value) for name, value in given.items()}
        with torch.inference_mode():
            return tuple(part.numpy() for part in module(torch.from_numpy(images), **more))

    return info, run


def _onnxruntime(path: Path, proto: "ModelProto", info: ExportInfo, threads: int | None) -> Runner:
    session = start_onnxruntime(path, proto.SerializeToString(), threads)

    def run(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        more = info.inputs(mode) if info.free else {}
        return tuple(session.run(list(INNER), {NORMALISED: images, **more}))

    return run


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


def _openvino(_: Path, proto: "ModelProto", info: ExportInfo, threads: int | None) -> Runner:
    """OpenVINO is fast where it knows all shapes: it prepares each shape and mode it meets."""
    openvino = need("openvino", "openvino")
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    core, lock, ready = openvino.Core(), Lock(), dict[object, Any]()

    def prepare(shape: tuple[int, ...], mode: Mode) -> Any:
        graph = proto
        if mode.pause.leaves:  # Of which the runtime dies.
            raise ValueError(f'OpenVINO cannot let all patches leave ("{mode}"): use ONNX Runtime')
        if info.free:
            graph = in_mode(proto, info.inputs(mode), info.happening(mode, (shape[2], shape[3])))
        model = core.read_model(graph.SerializeToString())
        model.reshape({NORMALISED: list(shape)})
        return core.compile_model(model, "CPU", settings).create_infer_request()

    def run(images: np.ndarray, mode: Mode) -> tuple[np.ndarray, ...]:
        key = images.shape, replace(mode, size=None)
        with lock:  # The next run writes over what this one gave.
            if key not in ready:
                if len(ready) >= _SHAPES:
                    ready.clear()
                ready[key] = prepare(images.shape, mode)
            results = ready[key].infer({NORMALISED: images})
            return tuple(results[name].copy() for name in INNER)

    return run


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
