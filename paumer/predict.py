"""From a picture to its labels: the one path that everything else uses."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
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
from paumer.criteria import Criterion, entropy
from paumer.data.labels import ClassSet, distinct_colours, paint
from paumer.data.transforms import normalise
from paumer.model import weights as files
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter
from paumer.pause_config import PauseConfig
from paumer.windows import anchors, blending, full_labels, side_by_side

Picture = str | Path | Image.Image | UInt8[np.ndarray, "_ _ 3"]

_BLOCK_COLOURS = ((0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (240, 228, 66))


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How pictures go through the network.

    ``window`` cuts a picture into overlapping squares of that side, ``stride`` apart (default:
    the window less 32), whose logits are averaged, as Segmenter and mmsegmentation do.
    ``short_side`` first scales the picture so that its shorter side is that long. What is None is
    as the model was trained. ``batch`` is how many pictures or windows of one size run together.
    """

    pause: PauseConfig = NO_PAUSE
    criterion: Criterion = entropy
    early_exit: bool = False
    window: int | None = None
    stride: int | None = None
    short_side: int | None = None
    batch: int = 8

    def __post_init__(self) -> None:
        for name in ("window", "stride", "short_side", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        if self.stride is not None and (self.window is None or self.stride > self.window):
            raise ValueError(
                f"a stride of {self.stride} leaves gaps between windows of {self.window}: "
                f"give a window at least as large"
            )


@dataclass(frozen=True)
class Segmentation:
    """A picture's labels, and where the work went.

    ``paused_after`` gives for each patch the block after which it paused, 0 for never;
    ``entropy`` is that of the final prediction, in nats. A patch covers ``patch`` pixels down
    and across.
    """

    image: UInt8[np.ndarray, "_ _ 3"]
    labels: Int[np.ndarray, "h w"] | UInt8[np.ndarray, "h w"]
    entropy: Float[np.ndarray, "gh gw"]
    paused_after: UInt8[np.ndarray, "ph pw"]
    patch: tuple[float, float]
    pause: PauseConfig
    seconds: float
    classes: ClassSet

    def class_shares(self) -> dict[str, float]:
        """The share of the picture that each class covers."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes.names))
        return dict(zip(self.classes.names, (counts / self.labels.size).tolist(), strict=False))

    def overlay(self, alpha: float = 0.5) -> Image.Image:
        """The picture with its classes painted over it, and a legend."""
        painted = media.overlay(self.image, paint(self.labels, self.classes), alpha)
        shares = self.class_shares()
        present = [i for i, name in enumerate(self.classes.names) if shares[name] > 0]
        return media.with_legend(
            painted,
            [self.classes.names[i] for i in present],
            [self.classes.colours[i] for i in present],
            [shares[self.classes.names[i]] for i in present],
        )

    def pause_map(self) -> Image.Image:
        """The picture with each paused patch tinted by the block it paused after, and a legend."""
        blocks = (0, *self.pause.blocks)
        names = ["to the end", *(f"paused after block {block}" for block in blocks[1:])]
        shares = [float((self.paused_after == block).mean()) for block in blocks]
        return media.with_legend(self.tinted(), names, _block_colours(len(blocks)), shares)

    def tinted(self, alpha: float = 0.6) -> UInt8[np.ndarray, "h w 3"]:
        """The picture with each paused patch tinted by the block it paused after."""
        numbers = np.searchsorted((0, *self.pause.blocks), self.paused_after)
        rows, columns = (
            np.minimum(np.arange(side) / self.patch[axis], numbers.shape[axis] - 1).astype(int)
            for axis, side in enumerate(self.labels.shape)
        )
        large = numbers[rows][:, columns]
        colours = np.asarray(_block_colours(len(self.pause.blocks) + 1), np.uint8)
        return np.where(
            large[..., None] > 0, media.overlay(self.image, colours[large], alpha), self.image
        )

    def save(self, directory: str | Path, stem: str) -> list[Path]:
        """Write the label mask, the overlay and the pause map; the paths written."""
        directory = Path(directory)
        paths = [directory / f"{stem}_{kind}.png" for kind in ("mask", "overlay", "paused")]
        media.write_mask(paths[0], self.labels, self.classes)
        media.write_image(paths[1], self.overlay())
        media.write_image(paths[2], self.pause_map())
        return paths


class Predictor:
    """A network with all it needs to take pictures as they are and give labels of their size."""

    def __init__(
        self, network: PausingSegmenter, points: Mapping[str, PauseConfig] | None = None
    ) -> None:
        if network.config is None:
            raise ValueError("the network has no configuration: its normalisation is not known")
        self.network = network.eval()
        self.config = network.config
        self.points = dict(points or {})
        colours = self.config.colours or distinct_colours(len(self.config.classes))
        self.classes = ClassSet(tuple(self.config.classes), tuple(colours))

    def resolve(self, pause: str | PauseConfig) -> PauseConfig:
        """The configuration that is meant: itself, its text, or an operating point's name."""
        if isinstance(pause, PauseConfig):
            return pause
        if pause in self.points:
            return self.points[pause]
        try:
            return PauseConfig.parse(pause)
        except ValueError as error:
            if ":" in pause:
                raise
            known = ", ".join(self.points) or "none"
            raise ValueError(f"{error}; operating points of this model: {known}") from None

    def predict(
        self, picture: Picture, pause: str | PauseConfig = NO_PAUSE, **options: Any
    ) -> Segmentation:
        """The segmentation of one picture: a file, a PIL image, or RGB bytes (h, w, 3)."""
        how = Inference(pause=self.resolve(pause), **options)
        return self.predict_batch([picture], how)[0]

    def predict_batch(
        self, pictures: Iterable[Picture], how: Inference | None = None
    ) -> list[Segmentation]:
        """The segmentation of each picture; those of one size run together."""
        how = self._as_trained(how or Inference())
        how.pause.check(self.network.backbone.depth, how.early_exit)
        images = [_as_array(picture) for picture in pictures]
        begin = time.perf_counter()
        with torch.inference_mode():
            plans = [_Plan.of(image, how) for image in images]
            self._run_windows(plans, how)
            labels = [plan.labels(self.network.backbone.patch).numpy() for plan in plans]
        seconds = (time.perf_counter() - begin) / max(1, len(images))
        return [
            Segmentation(
                image=image,
                labels=label,
                entropy=plan.entropy(),
                paused_after=plan.paused_after(),
                patch=plan.patch(self.network.backbone.patch),
                pause=how.pause,
                seconds=seconds,
                classes=self.classes,
            )
            for image, label, plan in zip(images, labels, plans, strict=True)
        ]

    def _as_trained(self, how: Inference) -> Inference:
        """What is not said of size and windows is as the model was trained."""
        config = self.config
        stride = how.stride if how.window else how.stride or config.stride
        return replace(
            how,
            short_side=how.short_side or config.short_side,
            window=how.window or config.window,
            stride=stride,
        )

    def _run_windows(self, plans: Sequence["_Plan"], how: Inference) -> None:
        """Run all windows of all pictures, those of one size together, in full batches."""
        device = next(self.network.parameters()).device
        queues: dict[tuple[int, int], list[tuple[_Plan, tuple[int, int]]]] = {}
        for plan in plans:
            queues.setdefault(plan.window, []).extend((plan, key) for key in plan.places())
        for queue in queues.values():
            for begin in range(0, len(queue), how.batch):
                part = queue[begin : begin + how.batch]
                pixels = torch.stack([plan.crop(key) for plan, key in part]).to(device)
                images = normalise(pixels, self.config.mean, self.config.std)
                result = self.network(
                    images, how.pause, how.criterion, how.early_exit, full_size=False
                )
                logits, paused = result.logits.float().cpu(), result.paused_after().cpu()
                for number, (plan, key) in enumerate(part):
                    plan.logits[key], plan.paused[key] = logits[number], paused[number]


@dataclass
class _Plan:
    """One picture on its way: where its windows lie, and what the network said of each."""

    pixels: UInt8[Tensor, "3 h w"]
    size: tuple[int, int]
    window: tuple[int, int]
    starts: tuple[tuple[int, ...], tuple[int, ...]]
    logits: dict[tuple[int, int], Float[Tensor, "classes gh gw"]] = field(default_factory=dict)
    paused: dict[tuple[int, int], Int[Tensor, "ph pw"]] = field(default_factory=dict)

    @classmethod
    def of(cls, image: UInt8[np.ndarray, "h w 3"], how: Inference) -> Self:
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        size = (image.shape[0], image.shape[1])
        if how.short_side and how.short_side != min(size):
            target = [max(1, round(side * how.short_side / min(size))) for side in size]
            scaled = F.interpolate(pixels[None].float(), size=target, mode="bilinear")[0]
            pixels = scaled.round_().to(torch.uint8)
        height, width = pixels.shape[1:]
        if how.window is None:
            return cls(pixels, size, (height, width), ((0,), (0,)))
        stride = how.stride or max(1, how.window - 32)
        window = (min(height, how.window), min(width, how.window))
        starts = (anchors(height, how.window, stride), anchors(width, how.window, stride))
        return cls(pixels, size, window, starts)

    def patch(self, own: tuple[int, int]) -> tuple[float, float]:
        """Pixels of the picture, as it came in, that a patch covers."""
        height, width = self.pixels.shape[1:]
        return own[0] * self.size[0] / height, own[1] * self.size[1] / width

    def places(self) -> list[tuple[int, int]]:
        return [(top, left) for top in self.starts[0] for left in self.starts[1]]

    def crop(self, key: tuple[int, int]) -> UInt8[Tensor, "3 h w"]:
        top, left = key
        return self.pixels[:, top : top + self.window[0], left : left + self.window[1]]

    def labels(self, patch: tuple[int, int]) -> UInt8[Tensor, "h w"] | Int[Tensor, "h w"]:
        """The picture's labels, of the size it came in."""
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
        return full_labels(side_by_side(grids), down, across)

    def entropy(self) -> Float[np.ndarray, "gh gw"]:
        return self._paste(
            {key: _grid_entropy(value) for key, value in self.logits.items()}
        ).numpy()

    def paused_after(self) -> UInt8[np.ndarray, "ph pw"]:
        return self._paste(
            {key: value.to(torch.uint8) for key, value in self.paused.items()}
        ).numpy()

    def _paste(self, parts: dict[tuple[int, int], Tensor]) -> Tensor:
        """The windows' grids as one grid of the picture; where they overlap the first counts."""
        first = parts[0, 0]
        scale = [cells / side for cells, side in zip(first.shape, self.window, strict=True)]
        ends = [round(self.starts[axis][-1] * scale[axis]) for axis in (0, 1)]
        whole = first.new_zeros(ends[0] + first.shape[0], ends[1] + first.shape[1])
        for key, part in reversed(list(parts.items())):
            top, left = (round(start * scale[axis]) for axis, start in enumerate(key))
            whole[top : top + part.shape[0], left : left + part.shape[1]] = part
        return whole


def load(name: str | Path, device: str | torch.device = "cpu") -> Predictor:
    """The predictor of a model directory or a hub model."""
    network = PausingSegmenter.from_pretrained(name, map_location=device)
    directory = Path(name)
    return Predictor(network, read_points(directory) if directory.is_dir() else {})


def read_points(directory: Path) -> dict[str, PauseConfig]:
    """The named operating points of a model directory, if it has any."""
    path = directory / files.POINTS_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
        return {name: PauseConfig.parse(point["pause"]) for name, point in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'cannot read operating points "{path}": {error}') from error


def _block_colours(count: int) -> list[tuple[int, int, int]]:
    """White for patches that never pause, then a colour for each pause."""
    return [(255, 255, 255), *(_BLOCK_COLOURS[i % len(_BLOCK_COLOURS)] for i in range(count - 1))]


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
