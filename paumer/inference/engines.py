"""What runs the network for the predictor: torch itself, compiled, ONNX Runtime or OpenVINO."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer.disk import cache_directory
from paumer.inference.exported import FORMAT, ExportInfo, Runner, check_exportable, open_onnx
from paumer.mode import Mode
from paumer.model.backbone import Images
from paumer.model.directory import fingerprint
from paumer.model.segmenter import GivenCriteria, PausingSegmenter, pad_to_patches
from paumer.pause_config import MergeConfig, PauseConfig

Answers = Iterator[tuple[int, Float[Tensor, "b classes gh gw"], Int[Tensor, "b ph pw"]]]
"""The number of each mode, coarse logits, and the block each patch paused after."""

ENGINES = ("torch", "compile", "onnx", "onnx-int8", "openvino")
"""What can run the network, by name."""


class Engine(ABC):
    """Runs a network on normalised images in some modes."""

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

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, in the order in which the tree of stages is walked."""
        predictions = self.network.forward_many(images, modes, given, self.each_step)
        # A generator must not be left inside inference mode: each step enters and leaves it.
        step = torch.inference_mode()(lambda: next(predictions, None))
        for number, prediction in iter(step, None):
            yield number, prediction.logits, prediction.paused_after()


class CompiledEngine(Engine):
    """The network compiled by torch for each mode: slow to start, then fast.

    The weights of the first call are packed for each number of tokens: what is trained on later
    does not count, and each mode holds a copy.
    """

    def __init__(self, network: PausingSegmenter) -> None:
        self.network = torch.compile(network, fullgraph=True, options={"freezing": True})

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, one after the other."""
        for number, mode in enumerate(modes):
            # Each mode compiles to a graph of its own, of which torch keeps eight by default.
            with torch.inference_mode(), torch._dynamo.config.patch(recompile_limit=256):
                prediction = self.network(images, mode, given.get(mode.criterion), full_size=False)
            yield number, prediction.logits, prediction.paused_after()


Exporter = Callable[[PausingSegmenter, Path, tuple[int, int], Mode, bool, bool], object]
"""Writes an ONNX file for images of a size in a mode: with its ratios as inputs, and in 8 bits?"""


@dataclass(eq=False)
class ExportedEngine(Engine):
    """The network exported when an image size is first met, and kept for the next time.

    One file serves all ratios after its blocks; of a model with a context, one mode.
    """

    network: PausingSegmenter
    export: Exporter
    runtime: str
    threads: int | None
    directory: Path

    def __post_init__(self) -> None:
        assert self.network.config
        shape = json.dumps(self.network.config.to_json(), sort_keys=True)
        key = f"{FORMAT} {fingerprint(self.network.state_dict())} {shape}"
        self._name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        self._open: dict[tuple[tuple[int, int], Mode], tuple[ExportInfo, Runner]] = {}
        self._lock = Lock()  # The exporter traces one network at a time.

    def check(self, mode: Mode) -> None:
        """Raise unless a file can run the mode."""
        check_exportable(mode)

    def answers(self, images: Images, modes: Sequence[Mode], given: GivenCriteria) -> Answers:
        """The answer of each mode, one after the other."""
        pixels = pad_to_patches(images, self.network.backbone.patch).cpu().numpy()
        for number, mode in enumerate(modes):
            info, run = self._session((pixels.shape[2], pixels.shape[3]), mode)
            logits, paused = run(pixels, info.kept(mode) if info.dial else [])
            yield number, torch.from_numpy(logits), torch.from_numpy(paused)

    def _session(self, size: tuple[int, int], mode: Mode) -> tuple[ExportInfo, Runner]:
        # With a context every mode has a file of its own, as no pausing always has.
        dial = bool(mode.stages) and not (self.network.context or mode.pause.leaves)
        if dial:
            usual = [block for block in (3, 5, 7) if block < self.network.backbone.depth]
            blocks = mode.pause.blocks
            if not mode.merge and set(blocks) <= set(usual):
                blocks = tuple(usual)
            mode = replace(
                mode,
                pause=PauseConfig(tuple((block, 0.5) for block in blocks)),
                merge=MergeConfig(tuple((block, 0.1) for block, _ in mode.merge.stages)),
            )
        with self._lock:
            if (size, mode) not in self._open:
                rounded = self.runtime == "onnx-int8"
                kind = f"{'-dial' * dial}{'.int8' * rounded}"
                path = self.directory / f"{self._name}-{size[1]}x{size[0]}-{mode.slug}{kind}.onnx"
                if not path.is_file():
                    self.export(self.network, path, size, mode, dial, rounded)
                self._open[size, mode] = open_onnx(path, self.runtime, self.threads, fused=True)
            return self._open[size, mode]


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
