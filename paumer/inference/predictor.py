"""From an image to its labels: the one path that everything else uses."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from paumer.arguments import checked
from paumer.classes import ClassSet, distinct_colours
from paumer.data.images import from_pillow, read_image
from paumer.data.transforms import normalise
from paumer.inference.engines import Engine, TorchEngine
from paumer.inference.result import Pixels, Segmentation
from paumer.inference.tiles import (
    Corner,
    Geometry,
    Inference,
    Plan,
    Size,
    full_labels,
    scaled_size,
)
from paumer.measurement import Measurement
from paumer.mode import UNPAUSED, Mode, ModeLike, by_size, check_runnable, read_mode
from paumer.model.directory import fingerprint
from paumer.model.pretrained import pick_device
from paumer.model.segmenter import GivenCriteria, PausingSegmenter, pad_to_patches

Windows = Float[Tensor, "windows 3 _h _w"]
ImageLike = str | Path | bytes | Image.Image | UInt8[np.ndarray, "_ _ 3"] | UInt8[Tensor, "_ _ 3"]
"""What can be segmented: a path, a file's content, a PIL image, or an RGB array (h, w, 3)."""

_ONE_IMAGE = (
    "give a path, the content of a file, a PIL image, or an RGB array, uint8 of shape (height, "
    "width, 3); Model.predict_batch takes several"
)


class Predictor:
    """A network with all it needs to take images as they are and give labels of their size."""

    @checked
    def __init__(
        self,
        network: PausingSegmenter,
        points: Mapping[str, Measurement] | None = None,
        engine: Engine | None = None,
        source: str | Path | None = None,
    ) -> None:
        if network.config is None:
            raise ValueError("the network has no configuration: its normalisation is not known")
        self.network = network.eval()
        self.engine = engine or TorchEngine(network)
        self.config, self.patch = network.config, network.backbone.patch
        self.points, self.source = dict(points or {}), source
        colours = self.config.colours or distinct_colours(len(self.config.classes))
        ignore = 255 if len(colours) <= 255 else 65535
        self.classes = ClassSet(tuple(self.config.classes), tuple(colours), ignore)

    def __repr__(self) -> str:
        config, points = self.config, ", ".join(self.points) or "none"
        return (
            f"{type(self).__name__}({config.backbone}, {config.decoder} decoder, "
            f"{len(config.classes)} classes, operating points: {points})"
        )

    @property
    def device(self) -> torch.device:
        """Where the network's weights lie; those of an exported file on the CPU."""
        return torch.device("cpu") if self._is_file else next(self.network.parameters()).device

    @property
    def _is_file(self) -> bool:
        """Whether the weights are those of an exported file, which keeps them to itself."""
        return next(self.network.parameters()).is_meta

    @checked
    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as ``cpu``, ``cuda:1`` or ``auto``, and return it."""
        where = pick_device(device)
        if not self._is_file:
            self.network.to(where)
        elif device != "auto" and where.type != "cpu":
            raise ValueError(f'"{self.source}" is an exported file, which runs on cpu, not {where}')
        return self

    def known_source(self) -> str | Path:
        """The name under which the model was loaded, which it must have been."""
        if self.source is None:
            raise ValueError(
                "this model lies in no directory: write it with "
                "model.network.save_pretrained(DIR), and load that"
            )
        return self.source

    def weights(self) -> PausingSegmenter:
        """The network, where it has weights: an exported file keeps them to itself."""
        if self._is_file:
            raise ValueError(
                f'"{self.source}" is an exported file, and this needs the network itself: '
                f"give the model that it was exported from"
            )
        return self.network

    def fingerprint(self) -> str:
        """A text that differs where any weight differs."""
        return self.engine.fingerprint() or fingerprint(self.network.state_dict())

    @property
    def modes(self) -> dict[str, Mode]:
        """The modes of the operating points, by name."""
        return {name: point.mode for name, point in self.points.items()}

    @checked
    def mode(self, given: ModeLike, study: bool = False) -> Mode:
        """The mode that is meant: itself, its text, or an operating point's name.

        Only a ``study`` may pause at random or by the true labels.
        """
        mode = read_mode(given, self.modes)
        if not study:
            check_runnable(mode)
            self.engine.check(mode)
        self.network.check(replace(mode, size=None))
        return mode

    @checked
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
        """Segment an image: a path, a file's content, a PIL image or an RGB array, uint8 (h, w, 3).

            result = model.predict("street.jpg", mode="3:0.4 exit")
            result.labels  # the class number of each pixel, (h, w)
            result.overlay().save("overlay.png")

        ``mode`` is a `Mode`, its text, or the name of an operating point, one of ``model.points``.
        Without it nothing pauses; ``3:0.4`` pauses 40% of the patches after block 3, and ``exit``
        also skips the decoder for them. ``window`` cuts a large image into squares of that side,
        ``stride`` apart. Over several ``scales``, and with ``flip`` mirrored ones, probabilities
        are averaged.
        """
        inference = Inference(window=window, stride=stride, scales=tuple(scales), flip=flip)
        return self.predict_batch([as_pixels(image)], mode, inference)[0]

    @checked
    def predict_batch(
        self,
        images: Iterable[ImageLike],
        mode: ModeLike = UNPAUSED,
        inference: Inference | None = None,
    ) -> list[Segmentation]:
        """The segmentation of each image; those of one size run together."""
        found = self.predict_many(images, [mode], inference)
        return next((results for _, results in found), [])

    @checked
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
        arrays = [as_pixels(image) for image in images]
        known = [self.mode(mode, study=bool(given)) for mode in modes]
        inference = inference or Inference()
        for numbers in by_size(known).values():
            begin, same = time.perf_counter(), [known[number] for number in numbers]
            plans = [self._plans(image, same[0].size, inference) for image in arrays]
            for index in self._run(plans, same, inference.batch, given):
                answers = [tuple(plan.answer() for plan in each) for each in plans]
                with torch.inference_mode():
                    labels = [full_labels([a.enlarge() for a in each]).numpy() for each in answers]
                seconds = (time.perf_counter() - begin) / len(arrays)
                results = [
                    Segmentation(
                        image=image,
                        labels=label,
                        entropy=own[0].entropy(),
                        paused_after=plan.paused_after(),
                        merged_after=plan.merged_after(),
                        patch=plan.geometry.patch_pixels,
                        mode=same[index],
                        seconds=seconds,
                        classes=self.classes,
                        answers=own,
                    )
                    for image, label, own, (plan, *_) in zip(
                        arrays, labels, answers, plans, strict=True
                    )
                ]
                yield numbers[index], results
                begin = time.perf_counter()

    def _plans(self, image: Pixels, short_side: int | None, inference: Inference) -> list[Plan]:
        """A plan for each scale, and for the mirrored image where it is wanted."""
        size = (image.shape[0], image.shape[1])
        return [
            Plan.of(image, self._geometry(size, short_side, inference, scale), mirrored)
            for scale in inference.scales
            for mirrored in ((False, True) if inference.flip else (False,))
        ]

    def _run(
        self, plans: list[list[Plan]], modes: Sequence[Mode], batch: int, given: GivenCriteria
    ) -> Iterator[int]:
        """Put the network's answers into the plans, mode by mode; the number of each mode."""
        queues: dict[Size, list[tuple[Plan, Corner]]] = {}
        for plan in chain.from_iterable(plans):
            queue = queues.setdefault(plan.geometry.window, [])
            queue += [(plan, corner) for corner in plan.geometry.corners]
        parts = [q[i : i + batch] for q in queues.values() for i in range(0, len(q), batch)]
        # One batch can take all modes at once; of several, each mode has to see all.
        numbers = range(len(modes))
        groups = [list(numbers)] if len(parts) == 1 else [[number] for number in numbers]
        for group in groups:
            for part in parts:
                images = self._normalised(part)
                same = [replace(modes[number], size=None) for number in group]
                for number, logits, *maps in self.engine.answers(images, same, given):
                    each = zip(part, logits.float().cpu(), *(m.cpu() for m in maps), strict=True)
                    for (plan, corner), own, paused, merged in each:
                        # A copy: a result must not keep those of its whole batch.
                        plan.logits[corner] = own.clone()
                        plan.paused[corner], plan.merged[corner] = paused, merged
                    if part is parts[-1]:
                        yield group[number]

    def _normalised(self, windows: Sequence[tuple[Plan, Corner]]) -> Windows:
        pixels = torch.stack([plan.crop(corner) for plan, corner in windows]).to(self.device)
        return normalise(pixels, self.config.mean, self.config.std)

    def _as_trained(self, inference: Inference | None) -> Inference:
        """The settings, with windows as in training where nothing is given."""
        inference, config = inference or Inference(), self.config
        window = inference.window or config.window
        stride = inference.stride or (None if inference.window else config.stride)
        if inference.stride and not window:
            raise ValueError(f"a stride of {stride} means nothing without a window: give both")
        return replace(inference, window=window, stride=stride)

    @checked
    def geometry(
        self, size: Size, mode: ModeLike = UNPAUSED, inference: Inference | None = None
    ) -> Geometry:
        """How an image of that (height, width) is scaled and cut into windows of which size."""
        return self._geometry(size, self.mode(mode, study=True).size, inference)

    def _geometry(
        self, size: Size, side: int | None, inference: Inference | None, scale: float = 1.0
    ) -> Geometry:
        side = self._short_side(size, side, inference)
        return Geometry.of(size, self.patch, side, self._as_trained(inference), scale)

    def _short_side(self, size: Size, asked: int | None, inference: Inference | None) -> int | None:
        """The length to which the shorter side is scaled; None leaves the image as it is.

        Without windows to cut it into, an image larger than those of training would be slower and
        less accurate: it is scaled down to them.
        """
        trained = None if inference and inference.window else self.config.trained_side
        return asked or short_side_of(size, self.config.short_side, trained)

    @checked
    def scaled(
        self, size: Size, mode: ModeLike = UNPAUSED, inference: Inference | None = None
    ) -> Size:
        """The (height, width) to which an image of that size is scaled before it is cut."""
        return scaled_size(size, self._short_side(size, self.mode(mode, True).size, inference))

    @checked
    def whole_geometry(self, size: Size) -> Geometry:
        """How an image of that (height, width) is scaled where it is never cut."""
        return Geometry.of(size, self.patch, self._short_side(size, None, None))

    @checked
    def windows(
        self, size: Size, mode: ModeLike = UNPAUSED, inference: Inference | None = None
    ) -> int:
        """Into how many windows an image of that (height, width) is cut."""
        return len(self.geometry(size, mode, inference).corners)

    @checked
    def macs(
        self, size: Size, mode: ModeLike = UNPAUSED, inference: Inference | None = None
    ) -> int:
        """Exact MACs of an image of that (height, width), over all its windows."""
        geometry, mode = self.geometry(size, mode, inference), self.mode(mode, study=True)
        return len(geometry.corners) * self.network.macs(geometry.window, replace(mode, size=None))

    @checked
    def scaled_labels(
        self, labels: UInt8[np.ndarray, "h w"], mode: ModeLike = UNPAUSED
    ) -> UInt8[np.ndarray, "_h _w"]:
        """An image's true labels at the size at which the network sees the image."""
        geometry = self.geometry((labels.shape[0], labels.shape[1]), mode)
        rows, columns = (
            ((2 * np.arange(new) + 1) * old) // (2 * new)
            for new, old in zip(geometry.scaled, labels.shape, strict=True)
        )
        return np.asarray(labels[rows][:, columns])

    @checked
    def network_inputs(
        self, image: Pixels, mode: ModeLike = UNPAUSED, inference: Inference | None = None
    ) -> Windows:
        """What the network sees of an image, window by window in whole patches: for timing."""
        plan = Plan.of(image, self.geometry((image.shape[0], image.shape[1]), mode, inference))
        windows = [(plan, corner) for corner in plan.geometry.corners]
        return pad_to_patches(self._normalised(windows), self.patch)

    @checked
    def whole_input(self, image: Pixels) -> Float[Tensor, "1 3 _h _w"]:
        """An image as the network sees it whole, at the size it was trained for."""
        plan = Plan.of(image, self.whole_geometry((image.shape[0], image.shape[1])))
        return self._normalised([(plan, (0, 0))])


def short_side_of(size: Size, short_side: int | None, trained_side: int | None) -> int | None:
    """The length to which a model scales the shorter side of an image; None leaves it as it is."""
    is_large = trained_side is not None and min(size) > trained_side
    return short_side or (trained_side if is_large else None)


def as_pixels(image: ImageLike) -> Pixels:
    """An image as uint8 RGB (h w 3)."""
    if isinstance(image, str | Path | bytes):
        return read_image(image)
    if isinstance(image, Image.Image):
        return from_pillow(image)
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and not image.is_meta:
        image = image.numpy(force=True)
    if not isinstance(image, np.ndarray | Tensor):
        given = "None" if image is None else type(image).__name__
        raise TypeError(f"{given} is not an image: {_ONE_IMAGE}")
    if isinstance(image, Tensor) or image.dtype != np.uint8 or image.shape[2:] != (3,):
        shape = tuple(image.shape)
        raise ValueError(
            f"an image of shape {shape} and type {image.dtype} was given: {_ONE_IMAGE}"
        )
    return image
