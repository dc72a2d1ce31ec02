"""Grids of pause configurations, by name."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

from paumer.mode import UNPAUSED, Mode, parse_modes
from paumer.pause_config import PAPER_CONFIGS, PauseConfig


def one(depth: int, ratios: int = 20) -> list[PauseConfig]:
    """One pause: each block but the last, with evenly spaced ratios between 0 and 1."""
    return [PauseConfig((stage,)) for stage in product(range(1, depth), spaced(ratios))]


def two(depth: int, first: int = 3, last: int = 9, ratios: int = 10) -> list[PauseConfig]:
    """Two pauses: each pair of blocks from ``first`` to ``last``, with all pairs of ratios."""
    return [
        PauseConfig(tuple(zip(blocks, pair, strict=True)))
        for blocks in combinations(range(first, min(last, depth - 1) + 1), 2)
        for pair in product(spaced(ratios), repeat=2)
    ]


def count(depth: int, ratio: float = 0.4, most: int | None = None) -> list[PauseConfig]:
    """The same ratio after each choice of one block, of two, and so on up to ``most``."""
    return [
        PauseConfig(tuple((block, ratio) for block in blocks))
        for number in range(1, (most or depth - 1) + 1)
        for blocks in combinations(range(1, depth), number)
    ]


def spaced(number: int) -> list[float]:
    """That many evenly spaced ratios between 0 and 1, both excluded."""
    return [round(i / (number + 1), 4) for i in range(1, number + 1)]


def grid(texts: Sequence[str], depth: int, points: Mapping[str, Mode]) -> list[Mode]:
    """The modes that texts mean, in which a grid may stand for stages; no pausing comes first."""
    makers: dict[str, Callable[[int], list[PauseConfig]]] = {"one": one, "two": two, "count": count}
    named = {text.split()[0] for text in texts if text.strip()}
    grids = {name: make(depth) for name, make in makers.items() if name in named}
    modes = parse_modes(texts, points, {"paper": PAPER_CONFIGS, **grids})
    return list(dict.fromkeys([UNPAUSED, *modes]))
