"""How a network is built, and what its classes and images are: one value, kept as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

MODEL_TYPE = "paumer"
"""By which other tools know the configuration for ours."""

MOST_CLASSES = 10_000
_LONGEST_NAME = 1000
_REMOVED = ("rejoin", "aux_norm", "temperatures")
"""Entries of 0.1 that changed how a network runs."""

_LARGEST = 65536  # Of any number in a configuration: sides, widths, counts.


@dataclass(frozen=True)
class ModelConfig:
    """How to build the network again, and what its classes and images are.

    ``short_side`` is the length that the shorter side of every image is scaled to. Without it
    images keep their size, but one whose shorter side is above ``trained_side``, that of the images
    in training, is scaled down to it. ``window`` and ``stride`` say how large images are cut (see
    ``Inference``). With ``context`` the mean of the patches that pause continues in their place.
    """

    backbone: str
    decoder: str
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    colours: tuple[tuple[int, int, int], ...] = ()
    decoder_options: Mapping[str, int | float] = field(default_factory=dict)
    norm_eps: float | None = None
    position_resize: str = "timm"
    drop_path: float = 0.0
    short_side: int | None = None
    window: int | None = None
    stride: int | None = None
    context: bool = False
    trained_side: int | None = None

    def __repr__(self) -> str:
        return f"ModelConfig({self.backbone}, {self.decoder} decoder, {len(self.classes)} classes)"

    def __post_init__(self) -> None:
        if not isinstance(self.decoder_options, Mapping):
            raise ValueError(f"decoder_options {self.decoder_options!r} are not named numbers")
        names = (*_listed(self.classes), self.backbone, self.decoder, self.position_resize)
        for name in (*names, *self.decoder_options):
            if not isinstance(name, str) or len(name) > _LONGEST_NAME:
                raise ValueError(f"{name!r} is not a name: give at most {_LONGEST_NAME} letters")
        if not 1 <= len(self.classes) <= MOST_CLASSES:
            raise ValueError(
                f"{len(self.classes)} classes are out of range: give from 1 to {MOST_CLASSES} names"
            )
        name, count = Counter(self.classes).most_common(1)[0]
        if count > 1:
            raise ValueError(f'{count} classes are called "{name}": give each its own name')
        _check_numbers("image_size", self.image_size, 2, (1, _LARGEST), int)
        _check_numbers("mean", self.mean, 3, (-_LARGEST, _LARGEST))
        _check_numbers("std", self.std, 3, (1e-6, _LARGEST))
        _check_numbers("drop_path", [self.drop_path], 1, (0, 1))
        if self.norm_eps is not None:
            _check_numbers("norm_eps", [self.norm_eps], 1, (0, 1))
        for name in ("short_side", "window", "stride", "trained_side"):
            if (side := getattr(self, name)) is not None:
                _check_numbers(name, [side], 1, (1, _LARGEST), int)
        if not isinstance(self.context, bool):
            raise ValueError(f"context: {self.context!r} is not true or false")
        for colour in _listed(self.colours):
            _check_numbers("colours", colour, 3, (0, 255), int)
        if self.colours and len(self.colours) != len(self.classes):
            raise ValueError(f"{len(self.colours)} colours for {len(self.classes)} classes")
        for name, number in self.decoder_options.items():
            _check_numbers(name, [number], 1, (0, 64 if name == "depth" else _LARGEST))

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """The configuration written as JSON values; anything unknown or missing is named."""
        for name in _REMOVED:
            if values.get(name):
                raise ValueError(
                    f"{name} was removed in 0.2, so a model that uses it cannot run: "
                    f"use paumer 0.1, or train it again without"
                )
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known - {"format", "model_type", *_REMOVED}):
            raise ValueError(f"unknown entries: {', '.join(unknown)}")
        if missing := sorted({"backbone", "decoder", "classes", "image_size"} - set(values)):
            raise ValueError(f"missing entries: {', '.join(missing)}")
        return cls(**{key: _frozen(value) for key, value in values.items() if key in known})

    def to_json(self) -> dict[str, object]:
        """The configuration as JSON values; what 0.1 did not know is named only where it is set."""
        values = asdict(self)
        for name in ("context", "trained_side"):
            if not values[name]:
                del values[name]
        return {"format": "paumer 1", **values}


def _listed(values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{values!r} is not a list")
    return values


def _check_numbers(
    name: str, values: Any, count: int, limits: tuple[float, float], kind: Any = int | float
) -> None:
    for value in _listed(values):
        if isinstance(value, bool) or not isinstance(value, kind):
            whole = "whole " if kind is int else ""
            raise ValueError(f"{name}: {value!r} is not a {whole}number")
        if not limits[0] <= value <= limits[1]:
            raise ValueError(f"{name}: {value!r} is out of range, {limits[0]} to {limits[1]}")
    if len(values) != count:
        raise ValueError(f"{name} needs {count} numbers, not {len(values)}")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
