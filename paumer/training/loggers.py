"""Where a run's numbers go beside metrics.csv: TensorBoard, or a logger of Lightning's by name."""

import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

_TENSORBOARD = "tensorboard"


def make_loggers(names: Iterable[str], out: Path) -> list[Logger]:
    """The loggers of these names for a run directory; ``none`` is no logger."""
    return [_make(name, out) for name in names if name != "none"]


def _make(name: str, out: Path) -> Logger:
    if name == _TENSORBOARD:
        return TensorBoardLogger(out, name="", version=_TENSORBOARD)
    try:
        known = import_module("pytorch_lightning.loggers")
    except ImportError as error:
        raise ImportError(
            f'the logger "{name}" is one of Lightning\'s ({error}): pip install "paumer[loggers]"'
        ) from error
    kinds = {kind.lower().removesuffix("logger"): getattr(known, kind) for kind in known.__all__}
    kinds.pop("", None)  # The base of all.
    if name not in kinds:
        raise ValueError(
            f'no logger "{name}": choose from none, {", ".join(sorted({_TENSORBOARD, *kinds}))}'
        )
    if name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise ValueError(
            "MLflow needs to know where runs are kept: set MLFLOW_TRACKING_URI, for example to "
            "http://localhost:5000 or sqlite:///mlflow.db"
        )
    given = {
        "save_dir": str(out / name),
        "root_dir": str(out / name),
        "tracking_uri": os.environ.get("MLFLOW_TRACKING_URI"),
        "experiment_name": "paumer",
        "project": os.environ.get(f"{name.upper()}_PROJECT", "paumer"),
        "name": out.name,
        "run_name": out.name,
    }
    taken = signature(kinds[name]).parameters
    try:
        made: Logger = kinds[name](**{key: given[key] for key in given if key in taken})
    except ImportError as error:
        raise ImportError(f'the logger "{name}" needs its library: {error}') from error
    return made


def log_options(loggers: Iterable[Logger], options: Mapping[str, Any]) -> None:
    """Tell the loggers how the run was started; TensorBoard has no place for it."""
    for logger in loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(dict(options))


def log_metrics(loggers: Iterable[Logger], values: Mapping[str, float], step: int) -> None:
    """Give the numbers of a step to the loggers, under names that they take."""
    plain = {re.sub(r"[^\w/. -]", "_", key.replace(":", "-")): values[key] for key in values}
    for logger in loggers:
        named = values if isinstance(logger, TensorBoardLogger) else plain
        logger.log_metrics(dict(named), step)


def finish(loggers: Iterable[Logger], status: str) -> None:
    """Tell the loggers that the run ended: by success, or failed."""
    for logger in loggers:
        logger.finalize(status)
