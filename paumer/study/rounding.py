"""What 8 bits cost and gain: accuracy and speed of a file beside those of its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from paumer.data.samples import Dataset, spread
from paumer.inference.engines import Engine
from paumer.inference.predictor import Predictor
from paumer.mode import Mode
from paumer.model.backbone import Images
from paumer.progress import Progress
from paumer.study.accuracy import evaluate
from paumer.study.speed import time_interleaved


@dataclass(frozen=True)
class Rounded:
    """The mIoU of a mode before and after, and how many times as fast the file is."""

    mode: Mode
    before: float
    after: float
    speed_up: float


def compare_rounded(
    model: Predictor,
    file: Predictor,
    dataset: Dataset,
    modes: Sequence[Mode],
    limit: int | None,
    max_drop: float,
    progress: Progress | None = None,
) -> list[Rounded]:
    """What each mode loses and gains; raises if one loses more than ``max_drop`` points of mIoU."""
    indices = spread(len(dataset), limit)
    before, after = (
        [tally.miou for tally in evaluate(each, dataset, modes, None, indices, progress)]
        for each in (model, file)
    )
    for mode, old, new in zip(modes, before, after, strict=True):
        if 100 * (old - new) > max_drop:
            raise ValueError(
                f'8 bits lose {100 * (old - new):.2f} points of mIoU in mode "{mode}" '
                f"({100 * old:.2f} to {100 * new:.2f}), more than --max-drop {max_drop:g}: "
                f"nothing was written"
            )
    seen = model.network_inputs(dataset[indices[0]].image)[:1]
    return [
        Rounded(mode, old, new, _speed_up(model.engine, file.engine, seen, mode))
        for mode, old, new in zip(modes, before, after, strict=True)
    ]


def _speed_up(one: Engine, two: Engine, seen: Images, mode: Mode) -> float:
    """How many times as fast the second is, in turns; the fastest of seven rounds counts."""
    runs = [partial(_run, engine, seen, mode) for engine in (one, two)]
    first, second = time_interleaved(runs, seen.device, rounds=7, warmup=2).min(0)
    return float(first / second)


def _run(engine: Engine, seen: Images, mode: Mode) -> None:
    list(engine.answers(seen, [mode], {}))
