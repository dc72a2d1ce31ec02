"""What `paumer.load` gives: a model as one object, whose methods are the functions of `paumer`."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Concatenate, ParamSpec

import torch

from paumer import DEFAULT_MODEL, api
from paumer.arguments import checked
from paumer.exporting.onnx import export_onnx
from paumer.inference.opening import open_model
from paumer.inference.predictor import Predictor
from paumer.untrusted import quoted

P = ParamSpec("P")


def _from_itself(function: Callable[P, Path]) -> "Callable[Concatenate[Model, P], Model]":
    """The training as a method, with the arguments of the function."""

    def train(self: "Model", /, *args: P.args, **kwargs: P.kwargs) -> "Model":
        """Train a copy of this model on a data set, and return it from its run directory.

            mine = paumer.load("street-tiny").train(data="photos/data.yaml", out="runs/mine")

        The arguments are the options of `paumer train`, of which `paumer train --help` tells;
        ``data`` and ``out`` are the two that matter. Classes of the same name keep their weights.
        This model stays as it is.
        """
        if "init" in kwargs:
            raise ValueError(
                f"init is {quoted(kwargs['init'])}, but model.train starts from the model itself: "
                f"leave it out, or call paumer.train"
            )
        self.weights()  # Of an exported file there are none to start from.
        kwargs["init"] = self.known_source()
        return load(function(*args, **kwargs), self.device)

    taken = [item for item in signature(function).parameters.values() if item.name != "init"]
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    train.__signature__ = Signature([own, *taken], return_annotation="Model")  # type: ignore[attr-defined]
    return train


class Model(Predictor):
    """A model: it predicts, and can be trained, evaluated, tuned, timed and exported.

    `paumer.load` gives one. ``model(image)`` is ``model.predict(image)``. The methods below are the
    functions of `paumer` of the same name: what they call ``model`` is this one.
    """

    __call__ = Predictor.predict

    train = _from_itself(api.train)
    evaluate = api.evaluate
    sweep = api.sweep
    tune = api.tune
    bench = api.bench
    export = api.export


@checked
def load(
    name: str | Path = DEFAULT_MODEL,
    device: str | torch.device = "auto",
    engine: str = "torch",
    threads: int | None = None,
) -> Model:
    """The model of that ``name``: a directory, run, exported file, built-in name or hub id.

        model = paumer.load("street-tiny")  # or "runs/mine", "mine.onnx"
        result = model.predict("street.jpg", mode="balanced")

    The default is built in. ``device`` is as for torch, such as ``cuda:1``; ``auto`` takes a GPU
    where there is one. ``engine`` runs the model: torch, compile, onnx, onnx-int8 or openvino; the
    last three with so many ``threads``.
    """
    return open_model(Model, name, export_onnx, device, engine, threads)
