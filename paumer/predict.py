"""From a picture to its labels: the one path that everything else uses."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from paumer import media
from paumer.criteria import AnyCriterion, entropy, named, protecting
from paumer.data.labels import ClassSet, distinct_colours
from paumer.data.transforms import normalise
from paumer.disk import replace_file
from paumer.engines import Answer, Engine, TorchEngine, make_engine
from paumer.model import weights as files
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter, pad_to_patches
from paumer.pause_config import PauseConfig
from paumer.segmentation import Segmentation
from paumer.study.tradeoff import Measurement
from paumer.windows import Pass, anchors, blending, full_labels, side_by_side

Picture = str | Path | Image.Image | UInt8[np.ndarray, "_ _ 3"]


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How pictures go through the network.

    ``window`` cuts a picture into overlapping squares of that side, ``stride`` apart (default:
    the window less 32, at least half of it), whose logits are averaged, as Segmenter and
    mmsegmentation do.
    ``short_side`` first scales the picture so that its shorter side is that long. What is None is
    as the model was trained. ``batch`` is how many pictures or windows of one size run together.
    At several ``scales`` (factors on the size), or with ``flip`` also mirrored, the probabilities
    are averaged. Patches that look like a class named in ``protect`` pause after all others.
    """

    pause: PauseConfig = NO_PAUSE
    criterion: AnyCriterion = entropy
    early_exit: bool = False
    window: int | None = None
    stride: int | None = None
    short_side: int | None = None
    batch: int = 8
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    protect: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("window", "stride", "short_side", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        if not self.scales or not all(0 < scale < math.inf for scale in self.scales):
            raise ValueError(f"scales are {self.scales}: give at least one, all above 0 and finite")
        if self.stride and self.window and self.stride > self.window:
            raise ValueError(
                f"a stride of {self.stride} leaves gaps between windows of {self.window}: "
                f"give a window at least as large"
            )

    def at(self, point: Measurement) -> Self:
        """The same at an operating point, which says who pauses and whether patches exit early."""
        # Where nothing pauses nobody has to be chosen: all such ways are one.
        who = named(point.criterion) if point.pause else entropy
        return replace(self, pause=point.pause, early_exit=point.early_exit, criterion=who)


class Predictor:
    """A network with all it needs to take pictures as they are and give labels of their size."""

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

    def resolve(self, pause: str | PauseConfig) -> PauseConfig:
        """The configuration that is meant: itself, its text, or an operating point's name."""
        return self.way(pause).pause

    def way(self, pause: str | PauseConfig, **options: Any) -> Inference:
        """How to run at a configuration, its text, or an operating point's name.

        An operating point also says who pauses and whether patches exit early, unless
        ``options`` do.
        """
        if isinstance(pause, PauseConfig):
            return Inference(pause=pause, **options)
        if point := self.points.get(pause):
            return replace(Inference().at(point), **options)
        try:
            config = PauseConfig.parse(pause)
        except ValueError as error:
            if ":" in pause:
                raise
            known = ", ".join(self.points) or "none"
            raise ValueError(f"{error}; operating points of this model: {known}") from None
        return Inference(pause=config, **options)

    def predict(
        self, picture: Picture, pause: str | PauseConfig = NO_PAUSE, **options: Any
    ) -> Segmentation:
        """The segmentation of one picture: a file, a PIL image, or RGB bytes (h, w, 3)."""
        return self.predict_batch([picture], self.way(pause, **options))[0]

    def predict_batch(
        self, pictures: Iterable[Picture], how: Inference | None = None
    ) -> list[Segmentation]:
        """The segmentation of each picture; those of one size run together."""
        for _, results in self.predict_many(pictures, [how or Inference()]):
            return results
        return []

    def predict_many(
        self, pictures: Iterable[Picture], ways: Sequence[Inference]
    ) -> Iterator[tuple[int, list[Segmentation]]]:
        """The segmentations of the pictures in each of several ways, with the way's number.

        Where all windows of all pictures fit one batch, what the ways have in common is computed
        once. The ways may differ in who pauses and exits early, not in sizes.
        """
        images = [_as_array(picture) for picture in pictures]
        ways = [self._as_trained(way) for way in ways]
        free: dict[str, Any] = {
            "pause": NO_PAUSE,
            "criterion": entropy,
            "early_exit": False,
            "protect": (),
        }
        if len({replace(way, **free) for way in ways}) != 1:
            raise ValueError(f"ways of one run may differ in {', '.join(free)} only")
        begin = time.perf_counter()
        plans = [_Plan.all_of(image, ways[0]) for image in images]
        patch = self.network.backbone.patch
        for number in self._run([plan for passes in plans for plan in passes], ways):
            with torch.inference_mode():
                labels = [
                    full_labels([plan.blended(patch) for plan in passes]).numpy()
                    for passes in plans
                ]
            seconds = (time.perf_counter() - begin) / max(1, len(images))
            yield (
                number,
                [
                    Segmentation(
                        image=image,
                        labels=label,
                        entropy=plan.entropy(patch),
                        paused_after=plan.paused_after(patch),
                        patch=plan.patch(patch),
                        pause=ways[number].pause,
                        seconds=seconds,
                        classes=self.classes,
                    )
                    for image, label, (plan, *_) in zip(images, labels, plans, strict=True)
                ],
            )
            begin = time.perf_counter()

    def windows(self, size: tuple[int, int], how: Inference) -> int:
        """Into how many windows a picture of that (height, width) is cut."""
        how = self._as_trained(how)
        starts = _starts(_scaled(size, how.short_side), how)
        return len(starts[0]) * len(starts[1])

    def input_size(self, size: tuple[int, int], how: Inference) -> tuple[int, int]:
        """The (height, width) that the network sees of a picture of that size, or of a window."""
        how = self._as_trained(how)
        return _window(_scaled(size, how.short_side), how)

    def scaled(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[Tensor, "3 _h _w"]:
        """A picture's bytes, channels first, at the size at which the network sees it."""
        return _Plan.of(image, Inference(short_side=self.config.short_side), 1.0, False).pixels

    def scaled_labels(
        self, labels: UInt8[np.ndarray, "h w"], how: Inference | None = None
    ) -> UInt8[np.ndarray, "_h _w"]:
        """A picture's true labels at the size at which the network sees the picture."""
        short_side = (how.short_side if how else None) or self.config.short_side
        size = _scaled((labels.shape[0], labels.shape[1]), short_side)
        rows, columns = (
            ((2 * np.arange(new) + 1) * old) // (2 * new)
            for new, old in zip(size, labels.shape, strict=True)
        )
        scaled: UInt8[np.ndarray, "_h _w"] = labels[rows][:, columns]
        return scaled

    def network_inputs(
        self, image: UInt8[np.ndarray, "h w 3"], how: Inference | None = None
    ) -> Float[Tensor, "windows 3 _h _w"]:
        """What the network sees of a picture, window by window in whole patches: for timing."""
        plan, *_ = _Plan.all_of(image, self._as_trained(how or Inference()))
        device = next(self.network.parameters()).device
        pixels = torch.stack([plan.crop(place) for place in plan.places()]).to(device)
        images = normalise(pixels, self.config.mean, self.config.std)
        return pad_to_patches(images, self.network.backbone.patch)

    def _as_trained(self, how: Inference) -> Inference:
        """What is not said of size and windows is as the model was trained."""
        config = self.config
        window = how.window or config.window
        if how.stride and not window:
            raise ValueError(f"a stride of {how.stride} means nothing without a window: give both")
        return replace(
            how,
            short_side=how.short_side or config.short_side,
            window=window,
            stride=how.stride or (None if how.window else config.stride),
        )

    def _run(self, plans: Sequence["_Plan"], ways: Sequence[Inference]) -> Iterator[int]:
        """Put the network's answers into the plans, way by way; the number of each way."""
        queues: dict[tuple[int, int], list[tuple[_Plan, tuple[int, int]]]] = {}
        for plan in plans:
            queues.setdefault(plan.window, []).extend((plan, key) for key in plan.places())
        size = ways[0].batch
        parts = [q[i : i + size] for q in queues.values() for i in range(0, len(q), size)]
        # One batch can take all ways at once; of several, each way has to see all.
        shared = [list(enumerate(ways))] if len(parts) == 1 else [[w] for w in enumerate(ways)]
        for group in shared:
            for part in parts:
                for number, logits, paused in self._answers(part, group):
                    logits, paused = logits.float().cpu(), paused.cpu()
                    for place, (plan, key) in enumerate(part):
                        plan.logits[key], plan.paused[key] = logits[place], paused[place]
                    if part is parts[-1]:
                        yield number

    def _answers(
        self,
        part: Sequence[tuple["_Plan", tuple[int, int]]],
        group: Sequence[tuple[int, Inference]],
    ) -> Iterator[Answer]:
        """The engine's answers to one batch of windows in some ways."""
        device = next(self.network.parameters()).device
        pixels = torch.stack([plan.crop(key) for plan, key in part]).to(device)
        images = normalise(pixels, self.config.mean, self.config.std)
        for who in dict.fromkeys((way.criterion, way.protect) for _, way in group):
            same = [w for w in group if (w[1].criterion, w[1].protect) == who]
            numbers, some = zip(*same, strict=True)
            pairs = [(way.pause, way.early_exit) for way in some]
            for number, logits, paused in self.engine.answers(images, pairs, self._judge(*who)):
                yield numbers[number], logits, paused

    def _judge(self, criterion: AnyCriterion, protect: tuple[str, ...]) -> AnyCriterion:
        """The criterion, with classes that pause last."""
        if not protect:
            return criterion
        names = list(self.classes.names)
        unknown = [name for name in protect if name not in names]
        if unknown:
            raise ValueError(
                f'no class "{unknown[0]}" to protect: the model knows {", ".join(names)}'
            )
        return protecting(criterion, [names.index(name) for name in protect])


@dataclass
class _Plan:
    """One picture on its way: where its windows lie, and what the network said of each."""

    pixels: UInt8[Tensor, "3 h w"]
    size: tuple[int, int]
    window: tuple[int, int]
    starts: tuple[tuple[int, ...], tuple[int, ...]]
    logits: dict[tuple[int, int], Float[Tensor, "classes gh gw"]] = field(default_factory=dict)
    paused: dict[tuple[int, int], Int[Tensor, "ph pw"]] = field(default_factory=dict)
    mirrored: bool = False

    @classmethod
    def all_of(cls, image: UInt8[np.ndarray, "h w 3"], how: Inference) -> list[Self]:
        """A plan for each scale, and for the mirrored picture where it is asked for."""
        mirrors = (False, True) if how.flip else (False,)
        return [cls.of(image, how, scale, mirror) for scale in how.scales for mirror in mirrors]

    @classmethod
    def of(
        cls, image: UInt8[np.ndarray, "h w 3"], how: Inference, scale: float, mirror: bool
    ) -> Self:
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        size = (image.shape[0], image.shape[1])
        whole = _scaled(size, how.short_side)
        target = (max(1, int(whole[0] * scale + 0.5)), max(1, int(whole[1] * scale + 0.5)))
        if target != size:
            if not 1 < target[0] * target[1] <= media.PIXEL_LIMIT:
                raise ValueError(
                    f"a picture of {size[1]}x{size[0]} pixels would be scaled to {target[1]}x"
                    f"{target[0]}: give another short side or scale"
                )
            # Smoothed when it gets smaller, as training crops are.
            pixels = F.interpolate(pixels[None], size=target, mode="bilinear", antialias=True)[0]
        if mirror:
            pixels = pixels.flip(2)
        shape = (pixels.shape[1], pixels.shape[2])
        return cls(pixels, size, _window(shape, how), _starts(shape, how), mirrored=mirror)

    def patch(self, own: tuple[int, int]) -> tuple[float, float]:
        """Pixels of the picture, as it came in, that a patch covers."""
        height, width = self.pixels.shape[1:]
        return own[0] * self.size[0] / height, own[1] * self.size[1] / width

    def places(self) -> list[tuple[int, int]]:
        return [(top, left) for top in self.starts[0] for left in self.starts[1]]

    def crop(self, key: tuple[int, int]) -> UInt8[Tensor, "3 h w"]:
        top, left = key
        return self.pixels[:, top : top + self.window[0], left : left + self.window[1]]

    def blended(self, patch: tuple[int, int]) -> Pass:
        """The coarse logits, and how they make those of the picture as it came in."""
        grids = [[self.logits[top, left] for left in self.starts[1]] for top in self.starts[0]]
        cells = grids[0][0].shape[1:]
        down, across = (
            blending(
                self.starts[axis],
                self.window[axis],
                cells[axis],
                -(-self.window[axis] // patch[axis]) * patch[axis],
                self.pixels.shape[1 + axis],
                self.size[axis],
            )
            for axis in (0, 1)
        )
        return side_by_side(grids), down, across.flip(0) if self.mirrored else across

    def entropy(self, patch: tuple[int, int]) -> Float[np.ndarray, "gh gw"]:
        """The entropy of the final prediction on the picture's coarse grid."""
        parts = {key: _grid_entropy(value) for key, value in self.logits.items()}
        return self._paste(parts, patch).numpy()

    def paused_after(self, patch: tuple[int, int]) -> UInt8[np.ndarray, "ph pw"]:
        """The block after which each patch of the picture paused."""
        parts = {key: value.to(torch.uint8) for key, value in self.paused.items()}
        return self._paste(parts, patch).numpy()

    def _paste(self, parts: dict[tuple[int, int], Tensor], patch: tuple[int, int]) -> Tensor:
        """The windows' grids as one grid of the picture; where they overlap the first counts."""
        first = parts[0, 0]
        cells = [
            number / (-(-side // p) * p)
            for number, side, p in zip(first.shape, self.window, patch, strict=True)
        ]
        size = [math.ceil(side * c) for side, c in zip(self.pixels.shape[1:], cells, strict=True)]
        whole = first.new_zeros(size)
        for key, part in reversed(list(parts.items())):
            top, left = (round(start * c) for start, c in zip(key, cells, strict=True))
            rows, columns = size[0] - top, size[1] - left
            whole[top : top + len(part), left : left + part.shape[1]] = part[:rows, :columns]
        return whole


def load(
    name: str | Path,
    device: str | torch.device = "cpu",
    engine: str = "torch",
    threads: int | None = None,
) -> Predictor:
    """The predictor of a model directory, a training run or a hub model.

    ``engine`` runs it: torch, compile, onnx, onnx-int8 or openvino; the last three with so many
    ``threads``.
    """
    directory = files.find_model(str(name))
    network = PausingSegmenter.from_pretrained(directory, map_location=device)
    return Predictor(network, read_points(directory), make_engine(engine, network, threads))


def read_points(directory: Path) -> dict[str, Measurement]:
    """The named operating points of a model directory, if it has any."""
    path = directory / files.POINTS_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
        return {name: _known(Measurement.from_json(point)) for name, point in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'cannot read operating points "{path}": {error}') from error


def _known(point: Measurement) -> Measurement:
    """The point, if it says who pauses; where nothing does, nobody has to be chosen."""
    named(point.criterion)
    return point if point.pause else replace(point, criterion="entropy")


def check_point_name(name: str) -> None:
    """Raise if an operating point of that name would hide a configuration."""
    if not name or name in ("none", "paper", "auto") or ":" in name:
        raise ValueError(f'an operating point cannot be called "{name}": that means another thing')


def write_points(directory: Path, points: Mapping[str, Measurement]) -> None:
    """Keep named operating points in a model directory beside those of other names."""
    for name in points:
        check_point_name(name)
    known = {**read_points(directory), **points}
    values = {name: point.to_json() for name, point in known.items()}
    replace_file(directory / files.POINTS_FILE, (json.dumps(values, indent=2) + "\n").encode())


def _starts(size: tuple[int, int], how: Inference) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the windows of a picture begin, down and across."""
    if how.window is None:
        return (0,), (0,)
    stride = how.stride or max((how.window + 1) // 2, how.window - 32)
    return anchors(size[0], how.window, stride), anchors(size[1], how.window, stride)


def _window(size: tuple[int, int], how: Inference) -> tuple[int, int]:
    """The part of a picture that the network sees at once."""
    largest = how.window or max(size)
    return min(size[0], largest), min(size[1], largest)


def _scaled(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """The size at which the shorter side is ``short_side`` long."""
    if short_side is None:
        return size
    height, width = (max(1, round(side * short_side / min(size))) for side in size)
    return height, width


def _grid_entropy(logits: Float[Tensor, "classes gh gw"]) -> Float[Tensor, "gh gw"]:
    log_p = logits.log_softmax(0)
    return -(log_p.exp() * log_p).sum(0)


def _as_array(picture: Picture) -> UInt8[np.ndarray, "h w 3"]:
    if isinstance(picture, str | Path):
        return media.read_image(picture)
    if isinstance(picture, Image.Image):
        return np.asarray(picture.convert("RGB"))
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(
            f"a picture of shape {picture.shape} and type {picture.dtype} was given: "
            f"give RGB bytes of shape (height, width, 3)"
        )
    return picture
