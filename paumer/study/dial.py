"""The whole dial in one search: sizes, mergings, pauses and exits, guided by predicted cost.

Nothing says beforehand which of them is best for a speed: it depends on the model and the images.
So modes of all kinds that should just reach a speed are counted on few images, and the best of them
on all.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from paumer.data.samples import spread
from paumer.measurement import Measurement, miou_of, speed_of
from paumer.mode import UNPAUSED, Mode
from paumer.pause_config import NO_MERGE, NO_PAUSE, MergeConfig, PauseConfig

SPEEDS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Speed-ups that are looked at for operating points."""
MARGIN = 1.12
"""How much faster than asked a mode may be: what is faster still loses more."""
_SIZES = (0.9, 0.8, 0.7, 0.6, 0.5)
_MERGED = (0.04, 0.07, 0.1, 0.13, 0.17)
_LEAVING = (0.8, 0.9, 1.0)

Predict = Callable[[Mode], Measurement]
"""The speed that a mode should have."""
Measure = Callable[[Sequence[Mode], bool], Sequence[Measurement]]
"""What modes get right, on few images or on all."""


def smaller_sides(side: int, patch: int) -> list[int]:
    """Shorter sides below that of the images, in whole patches."""
    return sorted({max(2, round(side * part / patch)) * patch for part in _SIZES} - {side})[::-1]


def dial_modes(depth: int, sizes: Sequence[int], template: Mode, exits: bool = True) -> list[Mode]:
    """Modes of all kinds for a backbone of so many blocks.

    Mergings in the first third or half of the blocks, one or several pauses in the first half, and
    nearly all or all leaving at three quarters, each of them or none, at each size or as the model
    was trained. Criterion and protected classes are those of the ``template``; without ``exits``
    nothing leaves.
    """
    third, half, late = max(1, depth // 3), max(1, depth // 2), round(0.75 * depth)
    merges = [NO_MERGE]
    for last, ratio in product(dict.fromkeys((third, half)), _MERGED):
        merges.append(MergeConfig(tuple((block, ratio) for block in range(1, last + 1))))
    early = [(), *(((third, ratio),) for ratio in (0.2, 0.3, 0.4, 0.5, 0.6))]
    early += [((third - 1, ratio), (half - 1, ratio)) for ratio in (0.2, 0.3) if 1 < third < half]
    ends = [(), *(((late, ratio),) for ratio in _LEAVING)] if exits else [()]
    modes = []
    for size, merge, begin, end in product((None, *sizes), merges, early, ends):
        pause = PauseConfig((*begin, *end)) if begin or end else NO_PAUSE
        mode = replace(template, pause=pause, merge=merge, early_exit=bool(end), size=size)
        modes.append(mode)
    return list(dict.fromkeys(mode for mode in modes if mode != UNPAUSED))


def near(predict: Predict, modes: Sequence[Mode], speed_up: float) -> list[Mode]:
    """Those that should be as fast as that, or a little faster, in order of what they do."""
    fits = []
    for mode in modes:
        found = predict(mode).speed_up or 0.0
        if speed_up <= found <= MARGIN * speed_up:
            fits.append(mode)
    return sorted(fits, key=lambda mode: (mode.size or 0, str(mode.merge), str(mode.pause)))


def search_dial(
    measure: Measure,
    predict: Predict,
    modes: Sequence[Mode],
    speeds: Sequence[float],
    most: int,
) -> list[Measurement]:
    """The best modes for some speed-ups: ``most`` are tried on few images, a quarter on all."""
    each = max(1, most // len(speeds))
    tried: list[list[Mode]] = []
    for speed_up in speeds:
        fits = near(predict, modes, speed_up)
        tried.append([fits[n] for n in spread(len(fits), each)] if fits else [])
    flat = list(dict.fromkeys(mode for some in tried for mode in some))
    if not flat:
        return []
    found = {item.mode: item for item in measure(flat, True)}
    best: list[Mode] = []
    for some in tried:
        ranked = sorted(some, key=lambda mode: (-miou_of(found[mode]), -speed_of(found[mode])))
        best += ranked[: max(1, each // 4)]
    return list(measure(list(dict.fromkeys(best)), False))
