"""How an image runs: one value for everything that decides its labels and its cost.

A mode is spelled ``STAGES [exit] [by=NAME] [protect=a+b] [size=288]``, with defaults left out: on
the command line, in files, in keys, over HTTP and in tables alike. A stage pauses (``3:0.4``) or
merges (``2:~0.1``, ``1-6:~0.1``).
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import quote, unquote

from paumer.pause_config import (
    NO_MERGE,
    NO_PAUSE,
    PAPER_CONFIGS,
    Amount,
    MergeConfig,
    PauseConfig,
    whole,
)
from paumer.untrusted import near

CRITERIA = ("entropy", "neighbours")
"""Criteria that need nothing but the auxiliary head's logits."""

STUDY_CRITERIA = ("random", "oracle")
"""Criteria of evaluate and sweep alone: the one knows nothing, the other the true labels."""

REMOVED_CRITERIA = ("borders", "margin", "confidence")
"""Criteria of 0.1 that won nothing: see the log of negative results."""

LARGEST_SIDE = 65536
FULL_SIZE = -1
"""The size of a mode that leaves images as large as they are, spelled ``size=full``."""

_LONGEST_SLUG = 120  # File names may have 255 bytes, of which others need some.
_HINT = 'write STAGES [exit] [by=NAME] [protect=a+b] [size=288], such as "3:0.4,9:0.9 exit"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How an image runs.

    ``merge`` says after which blocks patches become part of similar ones, ``pause`` after which
    some pause, of the same block after its merging. ``criterion`` names what scores the patches,
    ``early_exit`` lets paused ones take the auxiliary head's label, patches that look like a class
    in ``protect`` pause after all others, and ``size`` is the length to which the image's shorter
    side is scaled (None: as the model was trained, FULL_SIZE: not at all).
    Equal modes are equal values: where nothing pauses, only mergings and the size are left.
    """

    pause: PauseConfig = NO_PAUSE
    merge: MergeConfig = NO_MERGE
    criterion: str = "entropy"
    early_exit: bool = False
    protect: tuple[str, ...] = ()
    size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pause, PauseConfig):
            raise TypeError(f"{short(self.pause)} is not a PauseConfig: Mode.parse reads texts")
        if not isinstance(self.criterion, str):
            raise TypeError(f"criterion is {short(self.criterion)}: give a name, such as entropy")
        if self.criterion in REMOVED_CRITERIA:
            raise ValueError(
                f'the criterion "{self.criterion}" was removed in 0.2: it gained nothing'
            )
        if self.criterion not in (*CRITERIA, *STUDY_CRITERIA):
            known = ", ".join((*CRITERIA, *STUDY_CRITERIA))
            raise ValueError(f'no criterion "{self.criterion}": choose one of {known}')
        if type(self.early_exit).__name__ not in ("bool", "bool_"):  # numpy's too.
            raise TypeError(f"early_exit is {short(self.early_exit)}: give True or False")
        size = None if self.size is None else whole("size", self.size)
        if size not in (None, FULL_SIZE) and not 1 <= size <= LARGEST_SIDE:
            raise ValueError(f"size is {size}: give a side from 1 to {LARGEST_SIDE}, or full")
        names = self.protect
        listed = isinstance(names, Collection) and not isinstance(names, str)
        if not (listed and all(isinstance(name, str) and name for name in names)):
            raise ValueError(f"protect is {short(self.protect)}: give a list of class names")
        if not isinstance(self.merge, MergeConfig):
            raise TypeError(f"{short(self.merge)} is not a MergeConfig: Mode.parse reads texts")
        if self.pause.leaves and not self.early_exit:
            raise ValueError(
                f'all patches leave at the end of "{self.pause}", so nothing is left to decode: '
                f"add exit"
            )
        pauses = bool(self.pause)
        object.__setattr__(self, "criterion", self.criterion if pauses else "entropy")
        object.__setattr__(self, "early_exit", pauses and bool(self.early_exit))
        object.__setattr__(self, "protect", tuple(sorted(set(names))) if pauses else ())
        object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        stages = [str(part) for part in (self.merge, self.pause) if part]
        parts = [",".join(stages) or "none"]
        if self.early_exit:
            parts.append("exit")
        if self.criterion != "entropy":
            parts.append(f"by={self.criterion}")
        if self.protect:
            parts.append(f"protect={'+'.join(quote(name, safe='') for name in self.protect)}")
        if self.size is not None:
            parts.append("size=full" if self.size == FULL_SIZE else f"size={self.size}")
        return " ".join(parts)

    @property
    def stages(self) -> tuple[tuple[int, bool, Amount], ...]:
        """All stages in the order they happen: after which block, whether it merges, how many."""
        merges = [(block, True, ratio) for block, ratio in self.merge.stages]
        pauses = [(block, False, amount) for block, amount in self.pause.stages]
        return tuple(sorted([*merges, *pauses], key=lambda stage: (stage[0], not stage[1])))

    def __repr__(self) -> str:
        return f'Mode.parse("{self}")'

    @property
    def slug(self) -> str:
        """The spelling as part of a file name; a long one ends in a hash."""
        # A "_" of a class name is encoded, so that equal names mean equal modes.
        marks: dict[str, str | int | None] = {
            " ": "_",
            ":": "-",
            "<": "lt",
            "=": "-",
            "_": "%5F",
        }
        text = str(self).replace(":~", "-m").translate(str.maketrans(marks))
        if len(text) <= _LONGEST_SLUG:
            return text
        end = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return f"{text[: _LONGEST_SLUG - len(end) - 1]}-{end}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The mode spelled by ``text``, such as ``3:0.4,9:0.9 exit by=neighbours``."""
        if not isinstance(text, str):
            raise TypeError(f'{short(text)} is not a mode: give its text, such as "3:0.4 exit"')
        # Stages may be written with blanks, as in "3:0.2, 5:0.4".
        joined = re.sub(r":\s*~\s*", ":~", re.sub(r"\s*([,:<])\s*", r"\1", text))
        stages, *words = joined.split() or ["none"]
        merges = [part for part in stages.split(",") if "~" in part]
        pauses = ",".join(part for part in stages.split(",") if "~" not in part)
        settings: dict[str, Any] = {
            "pause": PauseConfig.parse(pauses),
            "merge": MergeConfig.parse(merges),
        }
        value: object
        for word in words:
            unreadable = f'cannot read "{word}" in mode "{text}"'
            match word.partition("="):
                case "exit", "", _:
                    name, value = "early_exit", True
                case "by", "=", criterion:
                    name, value = "criterion", criterion
                case "protect", "=", classes:
                    name, value = "protect", tuple(unquote(part) for part in classes.split("+"))
                case "size", "=", side if re.fullmatch(r"\d{1,9}", side):
                    name, value = "size", int(side)
                case "size", "=", "full":
                    name, value = "size", FULL_SIZE
                case _:
                    raise ValueError(f"{unreadable}: {_HINT}")
            if name in settings:
                raise ValueError(f"{unreadable}: it is given twice: {_HINT}")
            settings[name] = value
        return cls(**settings)


UNPAUSED = Mode()
"""Nothing pauses."""

ModeLike = Mode | PauseConfig | str
"""What stands for a mode: itself, a pause configuration, or a text."""


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
        if stages in grids and text not in points:
            modes += [Mode.parse(" ".join([str(one), *words])) for one in grids[stages]]
        else:
            modes.append(read_mode(text, points))
    return tuple(dict.fromkeys(modes))


def read_mode(given: ModeLike, points: Mapping[str, Mode] | None = None) -> Mode:
    """The mode that is meant, in a text also by the name of one of the operating points."""
    if isinstance(given, Mode):
        return given
    if isinstance(given, PauseConfig):
        return Mode(pause=given)
    if not isinstance(given, str):
        raise TypeError(
            f'{short(given)} is not a mode: give a Mode or its text, such as "3:0.4 exit"'
        )
    if points and given in points:
        return points[given]
    try:
        return Mode.parse(given)
    except ValueError as error:
        if points is None or ":" in given or given.split()[0] == "none":
            raise  # It cannot be meant as a name.
        known, guess = ", ".join(points) or "none", near(given, points)
        raise ValueError(f"{error}; operating points of this model: {known}{guess}") from None


def by_size(modes: Sequence[Mode]) -> dict[int | None, list[int]]:
    """The indices of the modes of each size: they see the same input."""
    indices: dict[int | None, list[int]] = {}
    for index, mode in enumerate(modes):
        indices.setdefault(mode.size, []).append(index)
    return indices


def check_runnable(mode: Mode) -> None:
    """Raise if only a study can run the mode."""
    if mode.criterion in STUDY_CRITERIA:
        raise ValueError(
            f'by={mode.criterion} is for evaluate and sweep alone ("{mode}"): '
            f"choose one of {', '.join(CRITERIA)}"
        )
