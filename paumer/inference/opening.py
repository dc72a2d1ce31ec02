"""A model's name -> a predictor: the one place where what a user names becomes what runs."""

from pathlib import Path
from typing import TypeVar

import torch

from paumer.inference.engines import Exporter, FileEngine, make_engine
from paumer.inference.exported import is_exported, open_exported
from paumer.inference.points import parse_points, read_points
from paumer.inference.predictor import Predictor
from paumer.model.config import ModelConfig
from paumer.model.directory import find_model
from paumer.model.pretrained import without_values
from paumer.model.segmenter import PausingSegmenter
from paumer.untrusted import shorten

Kind = TypeVar("Kind", bound=Predictor)


def open_model(
    kind: type[Kind],
    name: str | Path,
    export: Exporter,
    device: str | torch.device = "auto",
    engine: str = "torch",
    threads: int | None = None,
) -> Kind:
    """The predictor, of that kind, of a directory, a run, a file, a built-in or hub name.

    ``export`` writes the files that some engines run.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}: give at least 1, or None for all")
    if is_exported(name):
        return open_file(kind, Path(name), engine, threads)
    directory = find_model(str(name))
    network = PausingSegmenter.from_pretrained(directory, map_location=device)
    runner = make_engine(engine, network, threads, export)
    return kind(network, read_points(directory, network), runner, name)


def open_file(
    kind: type[Kind], path: Path, engine: str = "torch", threads: int | None = None
) -> Kind:
    """The predictor, of that kind, of an exported file, run by what it was exported for.

    An ONNX file also runs in ``engine`` openvino. The network holds no weights.
    """
    info, run = open_exported(path, None if engine == "torch" else engine, threads)
    try:
        config = ModelConfig.from_json(info.config)
        with without_values():
            network = PausingSegmenter.from_config(config)
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f'cannot use "{path}": {shorten(str(error))}') from error
    points = parse_points(info.points, path, network)
    runs = {name: point for name, point in points.items() if info.runs(point.mode)}
    return kind(network, runs, FileEngine(path, info, run), path)
