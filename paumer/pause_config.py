"""After which block, what ratio: the pause configuration, one value spelled the same everywhere."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from reprlib import repr as short
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Threshold:
    """Pause by score instead of by ratio: every patch that scores below ``below``.

    Spelled ``3:<0.35``. How many patches pause then depends on the image.
    """

    below: float

    def __post_init__(self) -> None:
        if not isinstance(self.below, Real) or not math.isfinite(self.below):
            given = short(self.below)
            raise ValueError(
                f'threshold "<{given}" is not a finite number: give a score, such as <0.35'
            )
        object.__setattr__(self, "below", self.below + 0.0)  # Zero has one spelling, without sign.

    def __str__(self) -> str:
        return f"<{_number(self.below)}"


Amount = float | Threshold
Ranges = Mapping[int, tuple[float, float]]

DEFAULT_RANGES: Ranges = dict.fromkeys(range(3, 10), (0.2, 0.8))
"""The paper's training ranges (section 4): a ratio of U[0.2, 0.8] after one of blocks 3 to 9."""


def _pairs(stages: Any) -> Sequence[tuple[Any, Any]]:
    """The stages, when each is a block and an amount."""
    try:
        pairs = [(block, amount) for block, amount in stages]
        if all(isinstance(amount, Real | Threshold) for _, amount in pairs):
            return pairs
    except (TypeError, ValueError):
        pass
    raise TypeError(f"stages are {short(stages)}: give pairs of a block and a ratio, ((3, 0.4),)")


def _is_range(value: Any) -> bool:
    """Whether a value is the least and the most of ratios."""
    listed = isinstance(value, Sequence) and len(value) == 2
    return listed and all(isinstance(end, Real) for end in value)


@dataclass(frozen=True, slots=True)
class PauseConfig:
    """Pauses in the order they happen: ``((3, 0.2), (5, 0.4))`` is spelled ``3:0.2,5:0.4``.

    Each stage is a block, counted from 1, and the ratio of the still active patches that pause
    after it; a last ratio of 1 lets all of them leave, with early exit. No stage at all is spelled
    ``none``. The text is also the JSON form.
    """

    stages: tuple[tuple[int, Amount], ...] = ()

    def __post_init__(self) -> None:
        stages = tuple(
            (whole("block", block), a if isinstance(a, Threshold) else float(a) + 0.0)
            for block, a in _pairs(self.stages)
        )
        object.__setattr__(self, "stages", stages)
        previous = 0
        for block, amount in stages:
            part = f"{block}:{amount}"
            if block < 1:
                raise ValueError(
                    f'cannot pause after block {block} ("{part}"): blocks count from 1'
                )
            if block <= previous:
                order = "is given twice" if block == previous else f"stands after block {previous}"
                raise ValueError(
                    f'block {block} {order} in "{self}": give each block once, in ascending order'
                )
            last = block == stages[-1][0]
            if not isinstance(amount, Threshold) and not (
                0 <= amount < 1 or (amount == 1 and last)
            ):
                raise ValueError(
                    f'ratio {amount} of "{part}" is out of range: a ratio is at least 0 and '
                    f"below 1, such as 0.4, or 1 at the end"
                )
            previous = block

    def __str__(self) -> str:
        return ",".join(f"{block}:{_number(amount)}" for block, amount in self.stages) or "none"

    def __bool__(self) -> bool:
        return bool(self.stages)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks after which patches pause."""
        return tuple(block for block, _ in self.stages)

    @property
    def leaves(self) -> bool:
        """Whether all patches leave at the last stage."""
        return bool(self.stages) and self.stages[-1][1] == 1.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The configuration spelled by ``text``, such as ``3:0.2,5:0.4`` or ``none``."""
        if not isinstance(text, str):
            raise TypeError(
                f'{short(text)} is not a pause configuration: give its text, such as "3:0.4"'
            )
        if text.strip() in ("none", ""):
            return cls()
        return cls(tuple(_parse_stage(part.strip(), text) for part in text.split(",")))

    @classmethod
    def draw(cls, seed: int, step: int, ranges: Ranges = DEFAULT_RANGES) -> Self:
        """One block and one ratio at random (section 3.2), the same for the same seed and step.

        ``ranges`` gives each block that may be drawn its range of ratios. Nothing but the arguments
        decides, so every process and every resumed run draws alike.
        """
        if not isinstance(ranges, Mapping) or not all(map(_is_range, ranges.values())):
            raise TypeError(
                f"ranges are {short(ranges)}: give blocks their ranges, such as {{3: (0.2, 0.8)}}"
            )
        if not ranges:
            raise ValueError("no block to draw from: give at least one block its range of ratios")
        rng = random.Random(f"pause {seed} {step}")
        block = rng.choice(sorted(ranges))
        return cls(((block, rng.uniform(*ranges[block])),))

    def check(self, depth: int, early_exit: bool = False) -> None:
        """Raise unless a backbone of ``depth`` blocks can pause like this."""
        last = self.blocks[-1] if self else 0
        if last > whole("depth", depth):
            raise ValueError(
                f"cannot pause after block {last}: this backbone has {depth} blocks "
                f'(pause configuration "{self}")'
            )
        if last == depth and not early_exit:
            raise ValueError(
                f"pausing after block {last}, the last one, saves nothing without early exit "
                f'(pause configuration "{self}")'
            )


NO_PAUSE = PauseConfig()
"""No patch pauses."""


@dataclass(frozen=True, slots=True)
class MergeConfig:
    """Mergings: ``((1, 0.1), (2, 0.1), (5, 0.2))`` is spelled ``1-2:~0.1,5:~0.2``.

    Each stage is a block, counted from 1, and the ratio of the active patches that are merged into
    others after it, at most a half.
    """

    stages: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        stages = tuple(
            (whole("block", block), float(ratio) + 0.0) for block, ratio in _pairs(self.stages)
        )
        object.__setattr__(self, "stages", stages)
        blocks = [block for block, _ in stages]
        if blocks != sorted(set(blocks)) or (blocks and blocks[0] < 1):
            raise ValueError(
                f'cannot merge after blocks {", ".join(map(str, blocks))} ("{self}"): '
                f"they count from 1; give each once, in ascending order"
            )
        for block, ratio in stages:
            if not 0 <= ratio <= 0.5:
                raise ValueError(
                    f'ratio {ratio} of "{block}:~{ratio}" is out of range: at most half of the '
                    f"patches are merged into the others, so give one from 0 to 0.5"
                )

    def __str__(self) -> str:
        parts: list[tuple[int, int, float]] = []
        for block, ratio in self.stages:
            if parts and parts[-1][1:] == (block - 1, ratio):
                parts[-1] = (parts[-1][0], block, ratio)
            else:
                parts.append((block, block, ratio))
        return ",".join(
            f"{first}{f'-{last}' if last > first else ''}:~{_number(ratio)}"
            for first, last, ratio in parts
        )

    def __bool__(self) -> bool:
        return bool(self.stages)

    @classmethod
    def parse(cls, parts: Sequence[str]) -> Self:
        """The mergings spelled by ``parts``, such as ``1-6:~0.1``."""
        stages: list[tuple[int, float]] = []
        for part in parts:
            match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?:~((\d+\.?\d*|\.\d+)(e-\d+)?)", part)
            if match is None:
                raise ValueError(
                    f'cannot read "{part}": write 2:~0.1, or 1-6:~0.1 for blocks 1 to 6'
                )
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f'"{part}" names no blocks: write the lower one first')
            stages += [(block, float(match[3])) for block in range(first, last + 1)]
        return cls(tuple(sorted(stages)))

    @classmethod
    def draw(cls, seed: int, step: int, ranges: Ranges) -> Self:
        """One ratio at random for the blocks up to one that is drawn, a function of seed and step.

        ``ranges`` gives each block its range of ratios; that of the last block counts.
        """
        rng = random.Random(f"merge {seed} {step}")
        last = rng.choice(sorted(ranges))
        ratio = rng.uniform(*ranges[last])
        return cls(tuple((block, ratio) for block in sorted(ranges) if block <= last))


NO_MERGE = MergeConfig()
"""No patches are merged."""


def whole(name: str, value: object) -> int:
    """The whole number, numpy's too, as an int; anything else is refused by its ``name``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {short(value)}: give a whole number")
    return int(value)


def parse_ranges(text: str) -> dict[int, tuple[float, float]]:
    """Ranges of ratios for blocks, from text such as ``3-9:0.2-0.8`` or ``3:0-0.9,5:0.2-0.6``."""
    number, ranges = r"(\d+\.?\d*|\.\d+)", dict[int, tuple[float, float]]()
    for part in text.split(","):
        match = re.fullmatch(rf"\s*(\d{{1,4}})(?:-(\d{{1,4}}))?\s*:\s*{number}-{number}\s*", part)
        if match is None:
            raise ValueError(
                f'cannot read "{part}" in ranges "{text}": write block:least-most or '
                f"first-last:least-most, such as 3-9:0.2-0.8"
            )
        least, most = float(match[3]), float(match[4])
        if not 0 <= least <= most < 1:
            raise ValueError(f'ratios of "{part}" must rise from 0 or more to less than 1')
        blocks = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not blocks or blocks[0] < 1:
            raise ValueError(f'"{part}" names no blocks: they count from 1, the lower one first')
        ranges |= dict.fromkeys(blocks, (least, most))
    return ranges


def _parse_stage(part: str, text: str) -> tuple[int, Amount]:
    match = re.fullmatch(r"(-?\d+)\s*:\s*(<?)\s*([-+.\deE]+)", part)
    try:
        if match is None:
            raise ValueError
        block, below, number = int(match[1]), match[2], float(match[3])
    except ValueError:
        raise ValueError(
            f'cannot read "{part}" in pause configuration "{text}": '
            f'write block:ratio, such as 3:0.4, several joined by commas, or "none"'
        ) from None
    return block, Threshold(number) if below else number


def _number(amount: Amount) -> str:
    """The shortest text that reads back as the same number."""
    if isinstance(amount, Threshold):
        return str(amount)
    short = format(amount, "g")
    return short if float(short) == amount else repr(amount)


_PAPER = """
3:0.2 3:0.4 3:0.6  5:0.2 5:0.4 5:0.6 5:0.8  3:0.2,5:0.2 3:0.3,5:0.3 3:0.4,5:0.4
3:0.2,5:0.2,7:0.2 3:0.3,5:0.3,7:0.3 3:0.4,5:0.4,7:0.4
"""
PAPER_CONFIGS = tuple(map(PauseConfig.parse, _PAPER.split()))
"""The 13 configurations of the paper's table, in its order."""
