"""An exported file beside its model: accuracy by three ways, and speed from image to labels.

    paumer export --out mine.onnx
    python benchmarks/exported.py accuracy mine.onnx --data camvid:DIR
    python benchmarks/exported.py speed mine.onnx --data camvid:DIR

The ways are predict with torch, predict with the file, and the script beside the file. Speeds are
those of one thread, in turns; the fastest round counts.
"""

import argparse
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from paumer import load
from paumer.data.datasets import open_dataset
from paumer.study.accuracy import Tally

Labels = Callable[[np.ndarray, str], np.ndarray]


def ways(model: str, file: Path, openvino: bool) -> dict[str, Labels]:
    """What gives the labels of an image in a mode."""
    predictors = {"torch": load(model), "file": load(file, threads=1)}
    if openvino:
        predictors["openvino"] = load(file, engine="openvino", threads=1)
    found: dict[str, Labels] = {
        name: lambda image, mode, own=own: own.predict(image, mode).labels  # type: ignore[misc]
        for name, own in predictors.items()
    }
    if (script := file.with_suffix(".py")).exists():
        program = runpy.run_path(str(script))
        start = program["open_file"](file)
        found["script"] = lambda image, mode: program["segment"](
            start, Image.fromarray(image), mode
        )
    return found


def accuracy(arguments: argparse.Namespace) -> None:
    """The mIoU of each way, and the ratio of pixels labelled as torch labels them."""
    dataset = open_dataset(arguments.data, "val")
    labels = ways(arguments.model, arguments.file, openvino=False)
    classes = len(dataset.class_set.names)
    for mode in arguments.modes:
        tallies, equal = {name: Tally.empty(classes) for name in labels}, dict.fromkeys(labels, 0.0)
        for index in range(len(dataset))[: arguments.limit]:
            sample = dataset[index]
            answers = {name: way(sample.image, mode) for name, way in labels.items()}
            for name, answer in answers.items():
                tallies[name] += Tally.of(index, answer, sample.labels, classes)
                equal[name] += float((answer == answers["torch"]).mean())
        for name, tally in tallies.items():
            same = 100 * equal[name] / len(tally.images)
            print(f"{mode} {name}: mIoU {100 * tally.miou:.2f}, {same:.3f}% equal", flush=True)


def speed(arguments: argparse.Namespace) -> None:
    """Milliseconds from image to labels, and the speed-up against torch in the same mode."""
    torch.set_num_threads(1)
    image = open_dataset(arguments.data, "val")[0].image
    labels = ways(arguments.model, arguments.file, openvino=True)
    labels.pop("script", None)  # Its session takes all threads.
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    ratios: dict[str, list[float]] = {name: [] for name in labels}
    for mode in arguments.modes:
        seconds = {name: list[float]() for name in labels}
        for number in range(arguments.rounds + 2):
            for name, way in labels.items():
                begin = clock()
                way(image, mode)
                if number > 1:
                    seconds[name].append(clock() - begin)
        for name, times in seconds.items():
            ratios[name].append(min(seconds["torch"]) / min(times))
            print(f"{mode} {name}: {1000 * min(times):.1f} ms, {ratios[name][-1]:.2f}x", flush=True)
    for name, values in ratios.items():
        print(f"geometric mean, {name}: {np.exp(np.mean(np.log(values))):.2f}x")


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("accuracy", "speed"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="street-tiny")
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--modes", nargs="+", default=["none", "balanced", "fast"])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time: for a busy machine")
    arguments = parser.parse_args()
    accuracy(arguments) if arguments.what == "accuracy" else speed(arguments)


if __name__ == "__main__":
    main()
