"""What runs the network for the predictor: torch itself, compiled, ONNX Runtime or OpenVINO."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer.criteria import AnyCriterion, name_of
from paumer.disk import cache_directory
from paumer.export import EXPORTED, ExportInfo, Runner, export_onnx, open_onnx, round_onnx
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.model.weights import fingerprint
from paumer.pause_config import PauseConfig

Answer = tuple[int, Float[Tensor, "b classes gh gw"], Int[Tensor, "b ph pw"]]
"""The number of a way, coarse logits, and the block each patch paused after."""


@runtime_checkable
class Engine(Protocol):
    """Runs a network on normalised pictures in some ways, each with or without early exit."""

    def answers(
        self,
        images: Float[Tensor, "b 3 h w"],
        ways: Sequence[tuple[PauseConfig, bool]],
        criterion: AnyCriterion,
    ) -> Iterator[Answer]:
        """The answer of each way, in any order."""
        ...


class TorchEngine:
    """The network as it is; what several ways have in common is computed once."""

    def __init__(self, network: PausingSegmenter) -> None:
        self.network = network

    def answers(
        self,
        images: Float[Tensor, "b 3 h w"],
        ways: Sequence[tuple[PauseConfig, bool]],
        criterion: AnyCriterion,
    ) -> Iterator[Answer]:
        """The answer of each way, in the order in which the tree of stages is walked."""
        # A generator must not be left inside inference mode: step it, then leave.
        steps = self.network.forward_many(images, ways, criterion)
        while True:
            with torch.inference_mode():
                step = next(steps, None)
            if step is None:
                return
            number, prediction = step
            yield number, prediction.logits, prediction.paused_after()


class CompiledEngine:
    """The network compiled by torch for each configuration: slow to start, then fast.

    The weights of the first call are packed for each number of tokens: what is trained on later
    does not count, and each configuration holds a copy.
    """

    def __init__(self, network: PausingSegmenter) -> None:
        self.network = torch.compile(network, fullgraph=True, options={"freezing": True})

    def answers(
        self,
        images: Float[Tensor, "b 3 h w"],
        ways: Sequence[tuple[PauseConfig, bool]],
        criterion: AnyCriterion,
    ) -> Iterator[Answer]:
        """The answer of each way, one after the other."""
        for number, (pause, early_exit) in enumerate(ways):
            # Each configuration compiles to a graph of its own; torch keeps eight if not told to.
            with torch.inference_mode(), torch._dynamo.config.patch(recompile_limit=256):
                found = self.network(images, pause, criterion, early_exit, full_size=False)
            yield number, found.logits, found.paused_after()


class ExportedEngine:
    """The network exported when a picture size is first met, and kept for the next time.

    One file serves all configurations of its blocks; of a model with a context, one configuration.
    """

    def __init__(
        self,
        network: PausingSegmenter,
        runtime: str = "onnx",
        threads: int | None = None,
        directory: Path | None = None,
    ) -> None:
        self.network, self.runtime, self.threads = network, runtime, threads
        self.directory = directory or cache_directory() / "exports"
        assert network.config
        shape = json.dumps(network.config.to_json(), sort_keys=True)
        told = f"{fingerprint(network.state_dict())} {shape}"
        self._name = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
        self._open: dict[tuple[Any, ...], tuple[ExportInfo, Runner]] = {}

    def answers(
        self,
        images: Float[Tensor, "b 3 h w"],
        ways: Sequence[tuple[PauseConfig, bool]],
        criterion: AnyCriterion,
    ) -> Iterator[Answer]:
        """The answer of each way, one after the other."""
        who = name_of(criterion) if any(pause for pause, _ in ways) else "entropy"
        if who not in EXPORTED:
            known = ", ".join(EXPORTED)
            raise ValueError(
                f"exported networks pause by one of {known}: use the torch engine for others"
            )
        pixels = pad_to_patches(images, self.network.backbone.patch).cpu().numpy()
        for number, (pause, early_exit) in enumerate(ways):
            info, run = self._session(
                (pixels.shape[2], pixels.shape[3]), pause, early_exit, who if pause else "entropy"
            )
            logits, paused = run(pixels, info.kept(pause) if info.pause is None else [])
            yield number, torch.from_numpy(logits), torch.from_numpy(paused)

    def _session(
        self, size: tuple[int, int], pause: PauseConfig, early_exit: bool, criterion: str
    ) -> tuple[ExportInfo, Runner]:
        usual = [block for block in (3, 5, 7) if block < self.network.pausing_depth]
        blocks = tuple(usual if set(pause.blocks) <= set(usual) else pause.blocks)
        # With a context every configuration has a file of its own, as no pausing always has.
        fixed = pause if self.network.context or not pause else None
        key = (size, blocks if fixed is None else fixed, early_exit, criterion)
        if key not in self._open:
            told = "-".join(map(str, blocks)) if fixed is None else str(fixed).replace(":", "_")
            name = f"{self._name}-{size[1]}x{size[0]}-{told}"
            name += (
                f"{'-exit' * early_exit}{'' if criterion == 'entropy' else f'-{criterion}'}.onnx"
            )
            path = self.directory / name
            if not path.is_file():
                export_onnx(self.network, path, size, fixed, blocks, early_exit, criterion)
            if self.runtime == "onnx-int8":
                exported, path = path, path.with_suffix(".int8.onnx")
                if not path.is_file():
                    round_onnx(exported, path)
            self._open[key] = open_onnx(path, self.runtime, self.threads, fused=True)
        return self._open[key]


def make_engine(
    name: str,
    network: PausingSegmenter,
    threads: int | None = None,
    directory: Path | None = None,
) -> Engine:
    """The engine of that name: torch, compile, onnx, onnx-int8 or openvino.

    Exported files are kept in ``directory``, by default the user's cache.
    """
    makers: dict[str, Callable[[], Engine]] = {
        "torch": lambda: TorchEngine(network),
        "compile": lambda: CompiledEngine(network),
    }
    for runtime in ("onnx", "onnx-int8", "openvino"):
        makers[runtime] = partial(ExportedEngine, network, runtime, threads, directory)
    if name not in makers:
        raise ValueError(f'no engine "{name}": choose one of {", ".join(makers)}')
    return makers[name]()
