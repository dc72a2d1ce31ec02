"""Exported files beside their model: accuracy, speed from image to labels, and what modes gain.

    paumer export --out mine.onnx
    paumer export --calibrate camvid:DIR --out mine8.onnx
    python benchmarks/exported.py accuracy mine.onnx mine8.onnx --data camvid:DIR
    python benchmarks/exported.py speed mine.onnx mine8.onnx --data camvid:DIR
    python benchmarks/exported.py modes mine.onnx mine8.onnx

A file runs in ONNX Runtime, in OpenVINO and in the script beside it; speeds are those of one
thread, in turns, and the fastest round counts. "Segmenter" is a network of the shapes of the public
Segmenter code (ViT-Ti, mask transformer, attention as softmax between two products, logits enlarged
to the image), written anew for this comparison, with random weights: its forward alone.
"""

import argparse
import runpy
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from paumer import load
from paumer.data.datasets import open_dataset
from paumer.study.accuracy import Tally

Labels = Callable[[np.ndarray, str], object]


class Attention(nn.Module):
    """Attention without fused operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Every token as a mean of all."""
        batch, count, width = x.shape
        parts = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (parts[0] @ parts[1].transpose(-2, -1) * self.scale).softmax(-1)
        mixed: Tensor = self.proj((weights @ parts[2]).transpose(1, 2).reshape(batch, count, width))
        return mixed


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        inner = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens after it."""
        x = x + self.attention(self.norms[0](x))
        after: Tensor = x + self.mlp(self.norms[1](x))
        return after


class Segmenter(nn.Module):
    """The shapes of Segmenter, ViT-Ti with a mask transformer of two blocks."""

    def __init__(self, classes: int, width: int = 192, heads: int = 3, side: int = 24) -> None:
        super().__init__()
        self.embed, self.side = nn.Conv2d(3, width, 16, 16), side
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, side * side + 1, width))
        self.encoder = nn.Sequential(*(Block(width, heads) for _ in range(12)), nn.LayerNorm(width))
        self.project = nn.Linear(width, width)
        self.classes = nn.Parameter(torch.randn(1, classes, width))
        self.decoder = nn.Sequential(*(Block(width, heads) for _ in range(2)), nn.LayerNorm(width))
        self.ends = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.norm = nn.LayerNorm(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of every pixel of images of whole patches."""
        x = self.embed(images)
        grid, size = x.shape[2:], images.shape[2:]
        table = self.positions[:, 1:].reshape(1, self.side, self.side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=grid, mode="bilinear").flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        x = self.encoder(x + torch.cat([self.positions[:, :1], table], 1))[:, 1:]
        x = torch.cat([self.project(x), self.classes.expand(len(x), -1, -1)], 1)
        parts = self.decoder(x).split((grid[0] * grid[1], self.classes.shape[1]), 1)
        patches, classes = (
            F.normalize(end(part), dim=-1) for end, part in zip(self.ends, parts, strict=True)
        )
        masks = self.norm(patches @ classes.transpose(1, 2)).transpose(1, 2)
        return F.interpolate(masks.reshape(*masks.shape[:2], *grid), size=size, mode="bilinear")


def ways(arguments: argparse.Namespace, scripts: bool) -> dict[str, Labels]:
    """What gives the labels of an image in a mode."""
    predictors = {"torch": load(arguments.model)}
    found: dict[str, Labels] = {}
    for file in arguments.files:
        predictors |= {
            f"{file.stem} {engine}": load(file, engine=engine, threads=1)
            for engine in ("onnx", "openvino")
        }
        if scripts and (script := file.with_suffix(".py")).exists():
            program = runpy.run_path(str(script))
            start, segment = program["open_file"](file), program["segment"]
            found[f"{file.stem} script"] = lambda image, mode, start=start, segment=segment: (  # type: ignore[misc]
                segment(start, Image.fromarray(image), mode)
            )
    own: dict[str, Labels] = {
        name: lambda image, mode, own=own: own.predict(image, mode).labels  # type: ignore[misc]
        for name, own in predictors.items()
    }
    return own | found


def accuracy(arguments: argparse.Namespace) -> None:
    """The mIoU of each way, and the ratio of pixels labelled as torch labels them."""
    dataset = open_dataset(arguments.data, "val")
    labels = ways(arguments, scripts=True)
    classes = len(dataset.class_set.names)
    for mode in arguments.modes:
        tallies, equal = {name: Tally.empty(classes) for name in labels}, dict.fromkeys(labels, 0.0)
        for index in range(len(dataset))[: arguments.limit]:
            sample = dataset[index]
            answers = {name: np.asarray(way(sample.image, mode)) for name, way in labels.items()}
            for name, answer in answers.items():
                tallies[name] += Tally.of(index, answer, sample.labels, classes)
                equal[name] += float((answer == answers["torch"]).mean())
        for name, tally in tallies.items():
            same = 100 * equal[name] / len(tally.images)
            print(f"{mode} {name}: mIoU {100 * tally.miou:.2f}, {same:.3f}% equal", flush=True)


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The seconds of the fastest of some rounds of each."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 2):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if number > 1:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def speed(arguments: argparse.Namespace) -> None:
    """Milliseconds from image to labels, against torch in the same mode and against Segmenter."""
    dataset = open_dataset(arguments.data, "val")
    image, labels = dataset[0].image, ways(arguments, scripts=False)
    other = Segmenter(len(dataset.class_set.names)).eval()
    seen = load(arguments.model).network_inputs(image)
    ratios: dict[str, list[float]] = {name: [] for name in labels}
    for mode in arguments.modes:
        calls: dict[str, Callable[[], object]] = {
            name: lambda way=way, mode=mode: way(image, mode)  # type: ignore[misc]
            for name, way in labels.items()
        }
        with torch.inference_mode():
            seconds = in_turns({**calls, "Segmenter": lambda: other(seen)}, arguments.rounds)
        for name, value in seconds.items():
            against = f"{seconds['torch'] / value:.2f}x torch, {seconds['Segmenter'] / value:.2f}x"
            print(f"{mode} {name}: {1000 * value:.1f} ms, {against} Segmenter", flush=True)
            if name in ratios:
                ratios[name].append(seconds["torch"] / value)
    for name, values in ratios.items():
        print(f"geometric mean against torch, {name}: {np.exp(np.mean(np.log(values))):.2f}x")


def modes(arguments: argparse.Namespace) -> None:
    """What each mode gains of the network's time in each engine, beside its MACs."""
    network = load(arguments.model)
    images = torch.randn(1, 3, *arguments.size, generator=torch.Generator().manual_seed(0))
    engines = {"torch": network.engine}
    for file in arguments.files:
        for runtime in ("onnx", "openvino"):
            engines[f"{file.stem} {runtime}"] = load(file, engine=runtime, threads=1).engine
    for name, engine in engines.items():
        calls: dict[str, Callable[[], object]] = {
            mode: lambda mode=mode, engine=engine: list(  # type: ignore[misc]
                engine.answers(images, [network.mode(mode)], {})
            )
            for mode in dict.fromkeys(("none", *arguments.modes))
        }
        seconds = in_turns(calls, arguments.rounds)
        whole = network.macs(arguments.size)
        for mode, value in seconds.items():
            gain, ratio = seconds["none"] / value, whole / network.macs(arguments.size, mode)
            told = f"{gain:.2f}x of {ratio:.2f}x by MACs, {gain / ratio:.3f}"
            print(f"{name} {mode}: {1000 * value:.1f} ms, {told}", flush=True)


def main() -> None:
    """Measure one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measures = {"accuracy": accuracy, "speed": speed, "modes": modes}
    parser.add_argument("what", choices=measures)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default="street-tiny")
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--modes", nargs="+", default=["none", "balanced", "fast"])
    parser.add_argument("--size", type=int, nargs=2, default=(512, 512))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measures[arguments.what](arguments)


if __name__ == "__main__":
    main()
