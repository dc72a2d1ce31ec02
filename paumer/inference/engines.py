"""What runs the network for the predictor: torch itself, compiled, ONNX Runtime or OpenVINO."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer.disk import cache_directory
from paumer.inference.exported import (
    FORMAT,
    ExportInfo,
    Runner,
    check_exportable,
    open_exported,
)
from paumer.mode import Mode
from paumer.model.backbone import Images
from paumer.model.directory import fingerprint
from paumer.model.segmenter import GivenCriteria, PausingSegmenter, pad_to_patches

Maps = Int[Tensor, "b ph pw"]
Answers = Iterator[tuple[int, Float[Tensor, "b classes gh gw"], Maps, Maps]]
"""The number of each mode, coarse logits, and the blocks after which patches paused and merged."""

ENGINES = ("torch", "compile", "onnx", "onnx-int8", "openvino")
"""What can run the network, by name."""


class Engine(ABC):
    """Runs a network on normalised images in some modes."""

    name: str
    """What it is called among the engines."""

    def fingerprint(self) -> str | None:
        """A text that differs where the weights differ; None if the network holds them."""
        return None

    def check(self, mode: Mode) -> None:  # noqa: B027
        """Raise if the engine cannot run a mode that the network can run."""

    @abstractmethod
    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, in any order."""


@dataclass(eq=False)
class TorchEngine(Engine):
    """The network as it is; what several modes have in common is computed once.

    ``each_step`` is called after every block, and may raise to end the work.
    """

    network: PausingSegmenter
    each_step: Callable[[], None] | None = None
    name: str = "torch"

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, in the order in which the tree of stages is walked."""
        predictions = self.network.forward_many(images, modes, given, self.each_step)
        # A generator must not be left inside inference mode: each step enters and leaves it.
        step = torch.inference_mode()(lambda: next(predictions, None))
        for number, prediction in iter(step, None):
            yield number, *prediction.maps()


class CompiledEngine(Engine):
    """The network compiled by torch for each mode: slow to start, then fast.

    The weights of the first call are packed for each number of tokens: what is trained on later
    does not count, and each mode holds a copy.
    """

    name = "compile"

    def __init__(self, network: PausingSegmenter) -> None:
        self.network = torch.compile(network, fullgraph=True, options={"freezing": True})

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, one after the other."""
        for number, mode in enumerate(modes):
            # Each mode compiles to a graph of its own, of which torch keeps eight by default.
            with torch.inference_mode(), torch._dynamo.config.patch(recompile_limit=256):
                prediction = self.network(images, mode, given.get(mode.criterion), full_size=False)
            yield number, *prediction.maps()


Exporter = Callable[[PausingSegmenter, Path, bool], object]
"""Writes an ONNX file of a network for any image size and mode, perhaps in 8 bits."""


@dataclass(eq=False)
class FileEngine(Engine):
    """A network that was exported, as its file."""

    path: Path
    info: ExportInfo
    run: Runner

    def __post_init__(self) -> None:
        self.name = self.info.runtime

    def check(self, mode: Mode) -> None:
        """Raise unless the file can run the mode."""
        self.info.check(mode)

    def fingerprint(self) -> str | None:
        """A text that differs where the file differs."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, one after the other."""
        pixels = pad_to_patches(images, self.info.patch).cpu().numpy()
        if self.info.size and pixels.shape[2:] != self.info.size:
            (height, width), (rows, columns) = pixels.shape[2:], self.info.size
            raise ValueError(
                f'"{self.path}" takes images of {columns}x{rows} alone, and this one runs at '
                f"{width}x{height}: export the model without --input"
            )
        for number, mode in enumerate(modes):
            self.check(mode)  # A study may ask for others.
            logits, paused, merged = map(torch.from_numpy, self.run(pixels, mode))
            yield number, logits, paused, merged


@dataclass(eq=False)
class ExportedEngine(Engine):
    """The network exported when it is first used, and kept for the next time."""

    network: PausingSegmenter
    export: Exporter
    name: str
    threads: int | None
    directory: Path

    def __post_init__(self) -> None:
        assert self.network.config
        shape = json.dumps(self.network.config.to_json(), sort_keys=True)
        key = f"{FORMAT} {fingerprint(self.network.state_dict())} {shape}"
        self._key = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        self._open: FileEngine | None = None
        self._lock = Lock()  # The exporter traces one network at a time.

    def check(self, mode: Mode) -> None:
        """Raise unless a file can run the mode."""
        check_exportable(mode)

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, one after the other."""
        for mode in modes:
            self.check(mode)
        with self._lock:
            self._open = self._open or self._opened()
        yield from self._open.answers(images, modes, given)

    def _opened(self) -> FileEngine:
        rounded = self.name == "onnx-int8"
        path = self.directory / f"{self._key}{'.int8' * rounded}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.export(self.network, path, rounded)
        runtime = "openvino" if self.name == "openvino" else "onnx"
        return FileEngine(path, *open_exported(path, runtime, self.threads))


def make_engine(
    name: str,
    network: PausingSegmenter,
    threads: int | None,
    export: Exporter,
    directory: Path | None = None,
) -> Engine:
    """The engine of that name; what ``export`` writes is kept in ``directory`` or the cache."""
    if name not in ENGINES:
        raise ValueError(f'no engine "{name}": choose one of {", ".join(ENGINES)}')
    if name == "torch":
        return TorchEngine(network)
    if name == "compile":
        return CompiledEngine(network)
    directory = directory or cache_directory() / "exports"
    return ExportedEngine(network, export, name, threads, directory)
