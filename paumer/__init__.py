"""Paumer: a vision-transformer segmenter that spends its work where the image needs it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paumer.api import bench, evaluate, export, resume, sweep, train, tune
    from paumer.inference.predictor import Predictor
    from paumer.inference.result import Segmentation
    from paumer.inference.tiles import Inference
    from paumer.loaded import Model, load
    from paumer.measurement import Measurement
    from paumer.mode import Mode
    from paumer.model.build import build_model
    from paumer.model.prediction import Prediction
    from paumer.model.segmenter import PausingSegmenter
    from paumer.pause_config import PAPER_CONFIGS, PauseConfig, Threshold
    from paumer.pausing import Stage
    from paumer.serve.client import Client

__version__ = "0.2.0"

DEFAULT_MODEL = "street-tiny"
"""The model inside the package, which is used where none is named."""

_HOMES = {
    "Client": "serve.client",
    "Inference": "inference.tiles",
    "Measurement": "measurement",
    "Mode": "mode",
    "Model": "loaded",
    "PAPER_CONFIGS": "pause_config",
    "PauseConfig": "pause_config",
    "PausingSegmenter": "model.segmenter",
    "Prediction": "model.prediction",
    "Predictor": "inference.predictor",
    "Segmentation": "inference.result",
    "Stage": "pausing",
    "Threshold": "pause_config",
    "bench": "api",
    "build_model": "model.build",
    "evaluate": "api",
    "export": "api",
    "load": "loaded",
    "resume": "api",
    "sweep": "api",
    "train": "api",
    "tune": "api",
}

__all__ = [
    "DEFAULT_MODEL",
    "PAPER_CONFIGS",
    "Client",
    "Inference",
    "Measurement",
    "Mode",
    "Model",
    "PauseConfig",
    "PausingSegmenter",
    "Prediction",
    "Predictor",
    "Segmentation",
    "Stage",
    "Threshold",
    "__version__",
    "bench",
    "build_model",
    "evaluate",
    "export",
    "load",
    "resume",
    "sweep",
    "train",
    "tune",
]


def __getattr__(name: str) -> object:
    # Loaded when first asked for, so that importing paumer costs and changes nothing.
    if name not in _HOMES:
        raise AttributeError(f"module 'paumer' has no attribute {name!r}")
    return getattr(import_module(f"paumer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
