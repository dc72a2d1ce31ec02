"""From an image to its labels: the one path that everything else uses."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from paumer.classes import ClassSet, distinct_colours
from paumer.data.images import read_image
from paumer.data.transforms import normalise
from paumer.inference.engines import Engine, TorchEngine
from paumer.inference.result import Segmentation
from paumer.inference.tiles import (
    Inference,
    Plan,
    full_labels,
    scaled_size,
    window_size,
    window_starts,
)
from paumer.measurement import Measurement
from paumer.mode import UNPAUSED, Mode, ModeLike, by_size, check_runnable, read_mode
from paumer.model.segmenter import GivenCriteria, PausingSegmenter, pad_to_patches

ImageLike = str | Path | Image.Image | UInt8[np.ndarray, "_ _ 3"]
"""What can be segmented: a file, a PIL image, or RGB bytes (h, w, 3)."""


class Predictor:
    """A network with all it needs to take images as they are and give labels of their size."""

    def __init__(
        self,
        network: PausingSegmenter,
        points: Mapping[str, Measurement] | None = None,
        engine: Engine | None = None,
    ) -> None:
        if network.config is None:
            raise ValueError("the network has no configuration: its normalisation is not known")
        self.network = network.eval()
        self.engine = engine or TorchEngine(network)
        self.config = network.config
        self.points = dict(points or {})
        colours = self.config.colours or distinct_colours(len(self.config.classes))
        ignore = 255 if len(colours) <= 255 else 65535
        self.classes = ClassSet(tuple(self.config.classes), tuple(colours), ignore)

    def __repr__(self) -> str:
        config, points = self.config, ", ".join(self.points) or "none"
        return (
            f"Predictor({config.backbone}, {config.decoder} decoder, "
            f"{len(config.classes)} classes, operating points: {points})"
        )

    @property
    def device(self) -> torch.device:
        """Where the network's weights lie."""
        return next(self.network.parameters()).device

    @property
    def modes(self) -> dict[str, Mode]:
        """The modes of the operating points, by name."""
        return {name: point.mode for name, point in self.points.items()}

    def mode(self, given: ModeLike, study: bool = False) -> Mode:
        """The mode that is meant: itself, its text, or an operating point's name.

        Only a ``study`` may pause at random or by the true labels.
        """
        mode = read_mode(given, self.modes)
        if not study:
            check_runnable(mode)
        self.network.check(replace(mode, size=None))
        return mode

    def predict(
        self,
        image: ImageLike,
        mode: ModeLike = UNPAUSED,
        *,
        window: int | None = None,
        stride: int | None = None,
        scales: Sequence[float] = (1.0,),
        flip: bool = False,
    ) -> Segmentation:
        """The segmentation of one image: a file, a PIL image, or RGB bytes (h, w, 3).

        ``mode`` is a `Mode`, its text such as ``3:0.4 exit``, or the name of an operating point.
        The rest is as in `Inference`.
        """
        how = Inference(window=window, stride=stride, scales=tuple(scales), flip=flip)
        return self.predict_batch([image], mode, how)[0]

    def predict_batch(
        self,
        images: Iterable[ImageLike],
        mode: ModeLike = UNPAUSED,
        inference: Inference | None = None,
    ) -> list[Segmentation]:
        """The segmentation of each image; those of one size run together."""
        for _, results in self.predict_many(images, [mode], inference):
            return results
        return []

    def predict_many(
        self,
        images: Iterable[ImageLike],
        modes: Sequence[ModeLike],
        inference: Inference | None = None,
        given: GivenCriteria = MappingProxyType({}),
    ) -> Iterator[tuple[int, list[Segmentation]]]:
        """The segmentations of the images in each of several modes, with the mode's number.

        Where all windows of all images fit one batch, what modes of one size have in common is
        computed once.
        """
        arrays = [_as_array(image) for image in images]
        known = [self.mode(mode, study=bool(given)) for mode in modes]
        how = self._as_trained(inference or Inference())
        for size, numbers in by_size(known).items():
            some = [replace(known[number], size=None) for number in numbers]
            for place, results in self._predict(arrays, size, some, how, given):
                own = known[numbers[place]]
                yield numbers[place], [replace(result, mode=own) for result in results]

    def _predict(
        self,
        images: Sequence[UInt8[np.ndarray, "_ _ 3"]],
        size: int | None,
        modes: Sequence[Mode],
        how: Inference,
        given: GivenCriteria,
    ) -> Iterator[tuple[int, list[Segmentation]]]:
        """The segmentations of images at one size."""
        begin = time.perf_counter()
        plans = [Plan.all_of(image, size or self.config.short_side, how) for image in images]
        patch = self.network.backbone.patch
        for number in self._run([p for passes in plans for p in passes], modes, how.batch, given):
            with torch.inference_mode():
                labels = [
                    full_labels([plan.blended(patch) for plan in passes]).numpy()
                    for passes in plans
                ]
            seconds = (time.perf_counter() - begin) / max(1, len(images))
            results = [
                Segmentation(
                    image=image,
                    labels=label,
                    entropy=plan.entropy(patch),
                    paused_after=plan.paused_after(patch),
                    patch=plan.patch(patch),
                    mode=modes[number],
                    seconds=seconds,
                    classes=self.classes,
                )
                for image, label, (plan, *_) in zip(images, labels, plans, strict=True)
            ]
            yield number, results
            begin = time.perf_counter()

    def windows(
        self, size: tuple[int, int], mode: Mode = UNPAUSED, inference: Inference | None = None
    ) -> int:
        """Into how many windows an image of that (height, width) is cut."""
        starts = window_starts(self._scaled(size, mode), self._as_trained(inference or Inference()))
        return len(starts[0]) * len(starts[1])

    def input_size(
        self, size: tuple[int, int], mode: Mode = UNPAUSED, inference: Inference | None = None
    ) -> tuple[int, int]:
        """The (height, width) that the network sees of an image of that size, or of a window."""
        return window_size(self._scaled(size, mode), self._as_trained(inference or Inference()))

    def macs(
        self, size: tuple[int, int], mode: Mode = UNPAUSED, inference: Inference | None = None
    ) -> int:
        """Exact MACs of an image of that (height, width), over all its windows."""
        seen = self.input_size(size, mode, inference)
        one = self.network.macs(seen, replace(mode, size=None))
        return self.windows(size, mode, inference) * one

    def scaled_labels(
        self, labels: UInt8[np.ndarray, "h w"], mode: Mode = UNPAUSED
    ) -> UInt8[np.ndarray, "_h _w"]:
        """An image's true labels at the size at which the network sees the image."""
        size = self._scaled((labels.shape[0], labels.shape[1]), mode)
        rows, columns = (
            ((2 * np.arange(new) + 1) * old) // (2 * new)
            for new, old in zip(size, labels.shape, strict=True)
        )
        scaled: UInt8[np.ndarray, "_h _w"] = labels[rows][:, columns]
        return scaled

    def network_inputs(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        mode: Mode = UNPAUSED,
        inference: Inference | None = None,
    ) -> Float[Tensor, "windows 3 _h _w"]:
        """What the network sees of an image, window by window in whole patches: for timing."""
        how = self._as_trained(inference or Inference())
        plan, *_ = Plan.all_of(image, mode.size or self.config.short_side, how)
        return pad_to_patches(self._normalised(plan), self.network.backbone.patch)

    def whole_input(self, image: UInt8[np.ndarray, "h w 3"]) -> Float[Tensor, "1 3 _h _w"]:
        """An image as the network sees it whole, at the size it was trained for."""
        return self._normalised(Plan.of(image, self.config.short_side, Inference()))

    def _normalised(self, plan: Plan) -> Float[Tensor, "windows 3 _h _w"]:
        pixels = torch.stack([plan.crop(corner) for corner in plan.corners()]).to(self.device)
        return normalise(pixels, self.config.mean, self.config.std)

    def _scaled(self, size: tuple[int, int], mode: Mode) -> tuple[int, int]:
        return scaled_size(size, mode.size or self.config.short_side)

    def _as_trained(self, how: Inference) -> Inference:
        """What is not said of windows is as the model was trained."""
        config = self.config
        window = how.window or config.window
        if how.stride and not window:
            raise ValueError(f"a stride of {how.stride} means nothing without a window: give both")
        return replace(
            how, window=window, stride=how.stride or (None if how.window else config.stride)
        )

    def _run(
        self, plans: Sequence[Plan], modes: Sequence[Mode], batch: int, given: GivenCriteria
    ) -> Iterator[int]:
        """Put the network's answers into the plans, mode by mode; the number of each mode."""
        queues: dict[tuple[int, int], list[tuple[Plan, tuple[int, int]]]] = {}
        for plan in plans:
            queues.setdefault(plan.window, []).extend((plan, key) for key in plan.corners())
        parts = [q[i : i + batch] for q in queues.values() for i in range(0, len(q), batch)]
        # One batch can take all modes at once; of several, each mode has to see all.
        numbers = range(len(modes))
        groups = [list(numbers)] if len(parts) == 1 else [[number] for number in numbers]
        for group in groups:
            for part in parts:
                pixels = torch.stack([plan.crop(key) for plan, key in part]).to(self.device)
                images = normalise(pixels, self.config.mean, self.config.std)
                some = [modes[number] for number in group]
                for number, logits, paused in self.engine.answers(images, some, given):
                    logits, paused = logits.float().cpu(), paused.cpu()
                    for place, (plan, key) in enumerate(part):
                        plan.logits[key], plan.paused[key] = logits[place], paused[place]
                    if part is parts[-1]:
                        yield group[number]


def _as_array(image: ImageLike) -> UInt8[np.ndarray, "h w 3"]:
    if isinstance(image, str | Path):
        return read_image(image)
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    if not isinstance(image, np.ndarray):
        kind = type(image).__name__
        raise TypeError(f"{kind} is not an image: give a file, a PIL image or RGB bytes")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"an image of shape {image.shape} and type {image.dtype} was given: "
            f"give RGB bytes of shape (height, width, 3)"
        )
    return image
