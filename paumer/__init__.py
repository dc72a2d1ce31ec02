"""Paumer: a vision-transformer segmenter that spends its work where the picture needs it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paumer.model.segmenter import PausingSegmenter, Prediction, build_model
    from paumer.pause_config import PAPER_CONFIGS, PauseConfig, Threshold
    from paumer.pausing import Stage
    from paumer.predict import Inference, Predictor, load
    from paumer.segmentation import Segmentation

__version__ = "0.1.0"

_HOMES = {
    "Inference": "predict",
    "PAPER_CONFIGS": "pause_config",
    "PauseConfig": "pause_config",
    "PausingSegmenter": "model.segmenter",
    "Prediction": "model.segmenter",
    "Predictor": "predict",
    "Segmentation": "segmentation",
    "Stage": "pausing",
    "Threshold": "pause_config",
    "build_model": "model.segmenter",
    "load": "predict",
}

__all__ = [
    "PAPER_CONFIGS",
    "Inference",
    "PauseConfig",
    "PausingSegmenter",
    "Prediction",
    "Predictor",
    "Segmentation",
    "Stage",
    "Threshold",
    "__version__",
    "build_model",
    "load",
]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, so that importing paumer costs and changes nothing.
    if name not in _HOMES:
        raise AttributeError(f"module 'paumer' has no attribute {name!r}")
    return getattr(import_module(f"paumer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
