"""Grids of pause configurations, by name."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

from paumer.mode import UNPAUSED, Mode, parse_modes
from paumer.pause_config import PAPER_CONFIGS, PauseConfig


def one(depth: int, shares: int = 20) -> list[PauseConfig]:
    """One pause: each block but the last, with evenly spaced shares between 0 and 1."""
    return [PauseConfig(((block, share),)) for block in range(1, depth) for share in spaced(shares)]


def two(depth: int, first: int = 3, last: int = 9, shares: int = 10) -> list[PauseConfig]:
    """Two pauses: each pair of blocks from ``first`` to ``last``, with all pairs of shares."""
    return [
        PauseConfig(((block, share), (later, more)))
        for block, later in combinations(range(first, min(last, depth - 1) + 1), 2)
        for share, more in product(spaced(shares), repeat=2)
    ]


def count(depth: int, share: float = 0.4, most: int | None = None) -> list[PauseConfig]:
    """The same share after each choice of one block, of two, and so on up to ``most``."""
    blocks = range(1, depth)
    return [
        PauseConfig(tuple((block, share) for block in chosen))
        for number in range(1, (most or depth - 1) + 1)
        for chosen in combinations(blocks, number)
    ]


def spaced(number: int) -> list[float]:
    """That many evenly spaced shares between 0 and 1, both excluded."""
    return [round(i / (number + 1), 4) for i in range(1, number + 1)]


def grid(texts: Sequence[str], depth: int, points: Mapping[str, Mode]) -> list[Mode]:
    """The modes meant by texts, in which grids may stand for stages, with no pausing first."""
    makers: dict[str, Callable[[int], list[PauseConfig]]] = {
        "one": one,
        "two": two,
        "count": count,
    }
    asked = {text.split()[0] for text in texts if text.strip()}
    grids = {name: make(depth) for name, make in makers.items() if name in asked}
    return list(
        dict.fromkeys([UNPAUSED, *parse_modes(texts, points, {"paper": PAPER_CONFIGS, **grids})])
    )
