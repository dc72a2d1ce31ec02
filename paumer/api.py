"""The front door: what `import paumer` offers beside its types."""

from pathlib import Path

import torch

from paumer.exporting.onnx import export_onnx
from paumer.inference.engines import make_engine
from paumer.inference.points import read_points
from paumer.inference.predictor import Predictor
from paumer.model.directory import find_model
from paumer.model.segmenter import PausingSegmenter


def load(
    name: str | Path,
    device: str | torch.device = "cpu",
    engine: str = "torch",
    threads: int | None = None,
) -> Predictor:
    """The predictor of a model directory, a training run, a built-in name or a hub model.

    ``engine`` runs it: torch, compile, onnx, onnx-int8 or openvino; the last three with so many
    ``threads``.
    """
    directory = find_model(str(name))
    network = PausingSegmenter.from_pretrained(directory, map_location=device)
    runner = make_engine(engine, network, threads, export_onnx)
    return Predictor(network, read_points(directory), runner)
