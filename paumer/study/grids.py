"""Grids of pause configurations, by name."""

from collections.abc import Sequence
from itertools import combinations, product

from paumer.pause_config import PAPER_CONFIGS, PauseConfig, parse_pauses

NO_PAUSE = PauseConfig()


def paper() -> list[PauseConfig]:
    """The 13 of the paper's table."""
    return list(PAPER_CONFIGS)


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


def grid(names: Sequence[str], depth: int) -> list[PauseConfig]:
    """The configurations meant by grid names or by their own texts, with no pausing first."""
    found = [NO_PAUSE]
    for name in names:
        if name == "one":
            found += one(depth)
        elif name == "two":
            found += two(depth)
        elif name == "count":
            found += count(depth)
        else:
            found += parse_pauses([name])
    return list(dict.fromkeys(found))
