"""How an image runs: one value for everything that decides its labels and its cost.

A mode is spelled ``STAGES [exit] [by=NAME] [protect=a+b] [size=288]``, with defaults left out: on
the command line, in files, in keys, over HTTP and in tables alike.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self
from urllib.parse import quote, unquote

from paumer.pause_config import NO_PAUSE, PAPER_CONFIGS, PauseConfig

CRITERIA = ("entropy", "neighbours")
"""Criteria that need nothing but the auxiliary head's logits."""

STUDY_CRITERIA = ("random", "oracle")
"""Criteria of evaluate and sweep alone: the one knows nothing, the other the true labels."""

REMOVED_CRITERIA = ("borders", "margin", "confidence")
"""Criteria of 0.1 that won nothing: see the log of negative results."""

LARGEST_SIDE = 65536
_LONGEST_SLUG = 120  # File names may have 255 bytes, of which others need some.
_HINT = 'write STAGES [exit] [by=NAME] [protect=a+b] [size=288], such as "3:0.4,9:0.9 exit"'


def check_criterion(name: str) -> None:
    """Raise unless there is a criterion of that name."""
    if name in REMOVED_CRITERIA:
        raise ValueError(f'the criterion "{name}" was removed in 0.2: it gained nothing')
    if name not in (*CRITERIA, *STUDY_CRITERIA):
        known = ", ".join((*CRITERIA, *STUDY_CRITERIA))
        raise ValueError(f'no criterion "{name}": choose one of {known}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How an image runs.

    ``criterion`` names what scores the patches, ``early_exit`` lets paused ones take the auxiliary
    head's label, patches that look like a class in ``protect`` pause after all others, and ``size``
    is the length to which the image's shorter side is scaled (None: as the model was trained).
    Equal modes are equal values: where nothing pauses, nobody has to be chosen and nobody exits.
    """

    pause: PauseConfig = NO_PAUSE
    criterion: str = "entropy"
    early_exit: bool = False
    protect: tuple[str, ...] = ()
    size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pause, PauseConfig):
            raise TypeError(f"{self.pause!r} is not a PauseConfig: Mode.parse reads texts")
        check_criterion(self.criterion)
        if self.size is not None and not 1 <= self.size <= LARGEST_SIDE:
            raise ValueError(f"size is {self.size}: give a side from 1 to {LARGEST_SIDE}")
        if isinstance(self.protect, str) or "" in self.protect:
            raise ValueError(f"protect is {self.protect!r}: give a list of class names")
        object.__setattr__(self, "protect", tuple(sorted(set(self.protect))))
        if not self.pause:
            object.__setattr__(self, "criterion", "entropy")
            object.__setattr__(self, "early_exit", False)
            object.__setattr__(self, "protect", ())

    def __str__(self) -> str:
        parts = [str(self.pause)]
        if self.early_exit:
            parts.append("exit")
        if self.criterion != "entropy":
            parts.append(f"by={self.criterion}")
        if self.protect:
            parts.append(f"protect={'+'.join(quote(name, safe='') for name in self.protect)}")
        if self.size is not None:
            parts.append(f"size={self.size}")
        return " ".join(parts)

    def __repr__(self) -> str:
        return f'Mode.parse("{self}")'

    @property
    def slug(self) -> str:
        """The spelling as part of a file name; a long one ends in a hash."""
        # A "_" of a class name is encoded, so that equal names mean equal modes.
        marks: dict[str, str | int | None] = {" ": "_", ":": "-", "<": "lt", "=": "-", "_": "%5F"}
        text = str(self).translate(str.maketrans(marks))
        if len(text) <= _LONGEST_SLUG:
            return text
        end = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return f"{text[: _LONGEST_SLUG - len(end) - 1]}-{end}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The mode spelled by ``text``, such as ``3:0.4,9:0.9 exit by=neighbours``."""
        # Stages may be written with blanks, as in "3:0.2, 5:0.4".
        stages, *words = re.sub(r"\s*([,:<])\s*", r"\1", text).split() or ["none"]
        pause = PauseConfig.parse(stages)
        criterion, early_exit, size = "entropy", False, None
        protect: tuple[str, ...] = ()
        seen = set()
        for word in words:
            name, mark, value = word.partition("=")
            if name in seen or bool(mark) == (name == "exit"):
                raise ValueError(_unreadable(word, text, "is given twice" if name in seen else ""))
            seen.add(name)
            if name == "exit":
                early_exit = True
            elif name == "by":
                criterion = value
            elif name == "protect":
                protect = tuple(unquote(part) for part in value.split("+"))
            elif name == "size" and re.fullmatch(r"\d{1,9}", value):
                size = int(value)
            else:
                raise ValueError(_unreadable(word, text))
        return cls(
            pause=pause, criterion=criterion, early_exit=early_exit, protect=protect, size=size
        )


UNPAUSED = Mode()
"""Nothing pauses."""

ModeLike = Mode | PauseConfig | str
"""What stands for a mode: itself, a pause configuration, or a text."""


def as_mode(given: ModeLike) -> Mode:
    """The mode that is meant."""
    if isinstance(given, Mode):
        return given
    if isinstance(given, PauseConfig):
        return Mode(pause=given)
    if isinstance(given, str):
        return Mode.parse(given)
    raise TypeError(f'{given!r} is not a mode: give a Mode or its text, such as "3:0.4 exit"')


def parse_modes(
    texts: Iterable[str],
    points: Mapping[str, Mode] = MappingProxyType({}),
    grids: Mapping[str, Sequence[PauseConfig]] = MappingProxyType({"paper": PAPER_CONFIGS}),
) -> tuple[Mode, ...]:
    """The modes spelled by ``texts``, each once.

    A text is a mode, the name of an operating point, or the name of a grid in the place of stages:
    ``paper exit`` is the 13 configurations of the paper's table with early exit.
    """
    modes: list[Mode] = []
    for text in texts:
        stages, *words = text.split() or ["none"]
        if text in points:
            modes.append(points[text])
        elif stages in grids:
            modes += [Mode.parse(" ".join([str(one), *words])) for one in grids[stages]]
        else:
            modes.append(read_mode(text, points))
    return tuple(dict.fromkeys(modes))


def read_mode(given: ModeLike, points: Mapping[str, Mode]) -> Mode:
    """The mode that is meant where operating points may be named."""
    if isinstance(given, str) and given in points:
        return points[given]
    try:
        return as_mode(given)
    except ValueError as error:
        if isinstance(given, str) and ":" in given:
            raise
        known = ", ".join(points) or "none"
        raise ValueError(f"{error}; operating points of this model: {known}") from None


def by_size(modes: Sequence[Mode]) -> dict[int | None, list[int]]:
    """The places of the modes of each size: they see the same input."""
    found: dict[int | None, list[int]] = {}
    for place, mode in enumerate(modes):
        found.setdefault(mode.size, []).append(place)
    return found


def check_runnable(mode: Mode) -> None:
    """Raise if only a study can run the mode."""
    if mode.criterion in STUDY_CRITERIA:
        raise ValueError(
            f'by={mode.criterion} is for evaluate and sweep alone ("{mode}"): '
            f"choose one of {', '.join(CRITERIA)}"
        )


def _unreadable(word: str, text: str, why: str = "") -> str:
    return f'cannot read "{word}" in mode "{text}"{f": it {why}" if why else ""}: {_HINT}'
