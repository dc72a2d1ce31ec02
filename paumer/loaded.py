"""What `paumer.load` gives: a model as one object, whose methods are the functions of `paumer`."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, Self

import torch

from paumer import DEFAULT_MODEL, api
from paumer.arguments import checked
from paumer.exporting.onnx import export_onnx
from paumer.inference.opening import open_model
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.mode import Mode, ModeLike
from paumer.model.pretrained import pick_device
from paumer.progress import Progress, StepProgress

if TYPE_CHECKING:
    from paumer.study.accuracy import Tally
    from paumer.study.speed import SpeedReport, SpeedSettings
    from paumer.study.tuning import Tuned, TuneSettings

P = ParamSpec("P")


def _method(function: Callable[P, Path]) -> "Callable[Concatenate[Model, P], Model]":
    """The training as a method, with the arguments of the function."""

    def train(self: "Model", /, *args: P.args, **kwargs: P.kwargs) -> "Model":
        """Train a copy of this model on a data set, and return it from its run directory.

        The arguments are the options of `paumer train`; ``data`` and ``out`` are the two that
        matter. Classes of the same name keep their weights. This model stays as it is.

            model = paumer.load("street-tiny").train(data="photos/data.yaml", out="runs/mine")
        """
        if "init" in kwargs:
            raise ValueError(
                f"init is {kwargs['init']!r}, but model.train starts from the model itself: "
                f"leave it out, or call paumer.train"
            )
        kwargs["init"] = str(api.source_of(self))
        return load(function(*args, **kwargs), self.device)

    taken = [item for item in signature(function).parameters.values() if item.name != "init"]
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    train.__signature__ = Signature([own, *taken], return_annotation="Model")  # type: ignore[attr-defined]
    return train


class Model(Predictor):
    """A model: it predicts, and can be trained, evaluated, tuned, timed and exported.

    `paumer.load` gives one. ``model(image)`` is ``model.predict(image)``. The other methods are the
    functions of `paumer` of the same name, called with this model.
    """

    __call__ = Predictor.predict

    train = _method(api.train)

    @checked
    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as ``cpu``, ``cuda:1`` or ``auto``, and return it."""
        self.network.to(pick_device(device))
        return self

    def evaluate(
        self,
        data: api.DataLike = "scenes",
        mode: api.Modes = "none",
        *,
        split: str = "val",
        limit: int | None = None,
        inference: Inference | None = None,
        by_size: bool = False,
        progress: Progress | None = None,
    ) -> "dict[Mode, Tally]":
        """What the model gets right on a data set in each mode: ``.miou``, ``.iou``, and more.

        ``data`` is a data set or what ``--data`` takes, such as ``photos/data.yaml``; ``mode`` is
        one or several. ``limit`` counts on so many images, spread over the split. Started by
        torchrun, every process counts its part and all get the sum.
        """
        return api.evaluate(
            self,
            data,
            mode,
            split=split,
            limit=limit,
            inference=inference,
            by_size=by_size,
            progress=progress,
        )

    def tune(
        self,
        data: api.DataLike = "scenes",
        mode: str = "auto",
        *,
        latency_ms: float | None = None,
        speed_up: float | None = None,
        max_drop: float | None = None,
        name: str | None = None,
        split: str = "val",
        limit: int | None = 50,
        out: str | Path | None = None,
        settings: "TuneSettings | None" = None,
        progress: StepProgress = lambda *_: None,
    ) -> "Tuned":
        """The best mode for a budget, from then on an operating point of this model.

        Give one of ``latency_ms``, ``speed_up`` and ``max_drop`` (points of mIoU), and the ``name``
        by which ``predict`` will know the point. In ``mode`` the word auto stands for the stages
        that are searched, as in ``auto exit by=neighbours``. The model's directory keeps the point;
        of a built-in or hub model, a copy in the working directory.
        """
        return api.tune(
            self,
            data,
            mode,
            latency_ms=latency_ms,
            speed_up=speed_up,
            max_drop=max_drop,
            name=name,
            split=split,
            limit=limit,
            out=out,
            settings=settings,
            progress=progress,
        )

    def bench(
        self,
        mode: api.Modes = "paper",
        *,
        input: str = "512",
        batch: int | Literal["auto"] = 1,
        images: str | Path | None = None,
        engine: str | Sequence[str] = "torch",
        settings: "SpeedSettings | None" = None,
        progress: Progress | None = None,
    ) -> "SpeedReport":
        """The speed of modes in one interleaved run: ``.measurements``.

        ``input`` is a side or WIDTHxHEIGHT; what runs is noise of that size, or the ``images`` of a
        folder.
        """
        return api.bench(
            self,
            mode,
            input=input,
            batch=batch,
            images=images,
            engine=engine,
            device=str(self.device),
            settings=settings,
            progress=progress,
        )

    def export(
        self,
        out: str | Path,
        mode: ModeLike = "none",
        *,
        format: Literal["onnx", "onnx-int8", "openvino", "program"] = "onnx",
        output: Literal["labels", "logits", "probabilities"] = "labels",
        pixels: Literal["uint8", "normalised"] = "uint8",
        input: str | None = None,
        images: str | Path | None = None,
        data: api.DataLike | None = None,
        split: str = "val",
        limit: int | None = 100,
        max_drop: float = 0.5,
        progress: Progress | None = None,
    ) -> api.Exported:
        """Write the model as one verified file for any image size, and a script that uses it.

        The file runs in any mode that does not merge, and in ``mode`` where none is given; with
        ``input`` it takes images of that size in that mode alone. It is verified on 20 ``images``
        of a folder, or on the sample set and synthetic scenes. With ``data`` 8 bits are refused if
        they lose more than ``max_drop`` points of mIoU there.
        """
        return api.export(
            out,
            self,
            mode,
            format=format,
            output=output,
            pixels=pixels,
            input=input,
            images=images,
            data=data,
            split=split,
            limit=limit,
            max_drop=max_drop,
            progress=progress,
        )


@checked
def load(
    name: str | Path = DEFAULT_MODEL,
    device: str | torch.device = "auto",
    engine: str = "torch",
    threads: int | None = None,
) -> Model:
    """The model of that name: a directory, a run, an exported file, a built-in name or a hub id.

        model = paumer.load("street-tiny")
        result = model.predict("street.jpg", mode="balanced")

    ``device`` is as for torch; ``auto`` takes a GPU where there is one. ``engine`` runs the model:
    torch, compile, onnx, onnx-int8 or openvino; the last three with so many ``threads``.
    """
    return open_model(Model, name, export_onnx, device, engine, threads)
