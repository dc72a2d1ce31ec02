"""What 8 bits cost and gain: accuracy and speed of a file beside those of its model."""

from collections.abc import Sequence
from dataclasses import dataclass

from paumer.data.samples import Dataset, spread
from paumer.inference.engines import TorchEngine
from paumer.inference.predictor import Predictor
from paumer.mode import UNPAUSED, Mode
from paumer.progress import Progress
from paumer.study.accuracy import evaluate
from paumer.study.speed import SpeedSettings, measure_speed


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
    modes, indices = list(dict.fromkeys([UNPAUSED, *modes])), spread(len(dataset), limit)
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
    engines = {"torch": TorchEngine(model.network), file.engine.name: file.engine}
    report = measure_speed(model.network, seen, modes, SpeedSettings(rounds=7), engines, progress)
    speed = {
        (item.engine, item.mode): item.images_per_second or 0.0 for item in report.measurements
    }
    return [
        Rounded(mode, old, new, speed[file.engine.name, mode] / speed["torch", mode])
        for mode, old, new in zip(modes, before, after, strict=True)
    ]
