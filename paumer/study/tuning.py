"""A budget in, a pause configuration out: the paper's two procedures (section 4)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from paumer.criteria import named
from paumer.data.datasets import Dataset
from paumer.pause_config import PAPER_CONFIGS, PauseConfig
from paumer.predict import Inference, Predictor
from paumer.study.cost import CostTable, cached_cost
from paumer.study.grids import NO_PAUSE, one, spaced, two
from paumer.study.speed import SpeedSettings, measure_speed
from paumer.study.sweep import Sweep, describe, search
from paumer.study.tradeoff import (
    Budget,
    Measurement,
    baseline,
    choose,
    join,
    per_picture,
    skyline,
)

NAMED: Mapping[str, Budget] = {
    "accurate": Budget(max_drop=0.3),
    "balanced": Budget(max_drop=1.0),
    "fast": Budget(max_drop=3.0),
}
"""Operating points that every tuned model gets beside ``unpaused``: the fastest that lose at most
so many points."""

Say = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How a configuration is searched for.

    ``procedure`` is the paper's first (``filter``: time many, evaluate those that are fast enough)
    or second (``layers``: one block after the other, until another pause no longer helps); None
    takes the first for a budget of time and the second for one of accuracy. ``most`` is how many
    the first one evaluates, ``finalists`` how many are timed for real at the end.
    """

    procedure: Literal["filter", "layers"] | None = None
    early_exit: bool = False
    criterion: str = "entropy"
    most: int = 60
    finalists: int = 6
    batch: int = 8
    speed: SpeedSettings = field(default_factory=SpeedSettings)

    def __post_init__(self) -> None:
        for name in ("most", "finalists", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        named(self.criterion)


@dataclass(frozen=True)
class Tuned:
    """The choice, whether it keeps within the budget, named points, and all that was evaluated.

    ``choice`` and ``points`` were timed for real in one run; ``evaluated`` has predicted speeds.
    """

    choice: Measurement
    met: bool
    points: dict[str, Measurement]
    evaluated: tuple[Measurement, ...]


@dataclass(frozen=True)
class Evaluation:
    """Counts what configurations get right and predicts their speed.

    What was counted is kept in ``directory`` and not counted again.
    """

    predictor: Predictor
    dataset: Dataset
    directory: Path
    table: CostTable
    settings: TuneSettings
    indices: Sequence[int] | None = None
    say: Say = lambda *_: None

    def __call__(self, pauses: Sequence[PauseConfig]) -> list[Measurement]:
        """The measurement of each configuration; by threshold its speed is not known."""
        exits, batch, who = self.settings.early_exit, self.settings.batch, self.settings.criterion
        ways = [Inference(pause=p, early_exit=exits and bool(p), batch=batch) for p in pauses]
        sweep = Sweep(self.predictor, self.dataset, ways, self.directory, who, self.indices)
        # Each sweep has a folder of its own name: other weights or data never meet old counts.
        sweep = replace(sweep, directory=self.directory / sweep.fingerprint()[:12])
        tallies = sweep.run(progress=lambda *done: self.say(f"evaluating {len(ways)}", *done))
        assert tallies is not None
        height, width = self.table.environment["size"]
        data = f"{self.dataset.name} {self.dataset.split}"
        size = (height, width)
        return describe(self.predictor, ways, tallies, size, who, self.table, data)


def tune(
    predictor: Predictor,
    dataset: Dataset,
    budget: Budget,
    directory: Path,
    images: Float[Tensor, "b 3 h w"] | None = None,
    settings: TuneSettings | None = None,
    indices: Sequence[int] | None = None,
    say: Say = lambda *_: None,
) -> Tuned:
    """The best configuration for a budget, on this machine and data.

    ``images`` is one batch as the network sees it: what is timed (default: the first picture).
    What was counted is kept in ``directory`` and not counted again.
    """
    settings = settings or TuneSettings()
    predictor.network.check(PauseConfig(), settings.early_exit)
    if images is None:
        images = predictor.network_inputs(dataset[0].image)[:1]
    windows = predictor.windows(dataset[0].labels.shape, Inference())
    table = cached_cost(
        predictor.network, images, settings.speed, progress=lambda *done: say("timing parts", *done)
    )
    table = replace(table, windows=windows)
    evaluate = Evaluation(predictor, dataset, directory, table, settings, indices, say)
    # After the last block a pause means something only with early exit.
    depth = predictor.network.pausing_depth + settings.early_exit
    found = evaluate([NO_PAUSE, *paper_configs(depth)])
    procedure = settings.procedure or ("layers" if budget.max_drop is not None else "filter")
    if procedure == "layers":
        # Nearly all can exit once the auxiliary head is as good as the whole network.
        shares = [*spaced(9), 0.95] if settings.early_exit else spaced(9)
        for asked in dict.fromkeys([budget, *NAMED.values()]):
            found += search(evaluate, asked, depth, shares)
    else:
        found += evaluate(fast_enough(table, budget, depth, settings))
    found = list({item.pause: item for item in found}.values())
    speeds = measure_speed(
        predictor.network,
        images,
        [item.pause for item in finalists(found, budget, settings.finalists)],
        replace(settings.speed, early_exit=settings.early_exit, criterion=settings.criterion),
        lambda *done: say("timing finalists", *done),
    )
    return decide(found, [per_picture(item, windows) for item in speeds.measurements], budget)


def paper_configs(depth: int) -> list[PauseConfig]:
    """Those of the paper's 13 that a backbone of so many blocks can run."""
    return [pause for pause in PAPER_CONFIGS if pause.blocks[-1] < depth]


def fast_enough(
    table: CostTable, budget: Budget, depth: int, settings: TuneSettings, margin: float = 1.15
) -> list[PauseConfig]:
    """Of all single pauses and pairs, some that meet a budget of time, spread over those near it.

    The slowest pause least, so they lose least; but predictions are not exact, so some are up to
    ``margin`` times as fast as need be. A budget of accuracy filters nothing.
    """
    grid = [*paper_configs(depth), *one(depth), *two(depth, 1, depth - 1)]
    items = [table.predict(pause, settings.early_exit) for pause in dict.fromkeys(grid)]
    items.sort(key=lambda item: item.images_per_second or 0.0)
    base = table.predict(NO_PAUSE)
    within = [item for item in items if budget.max_drop or budget.meets(item, base)]
    if not within:  # Nothing is fast enough: the fastest show how near it gets.
        return [item.pause for item in items[-settings.most :]]
    if budget.max_drop is None:
        enough = margin * (within[0].images_per_second or 0.0)
        within = [item for item in within if (item.images_per_second or 0.0) <= enough]
    count = min(settings.most, len(within))
    chosen = np.linspace(0, len(within) - 1, count).round().astype(int).tolist()
    return [within[number].pause for number in chosen]


def finalists(
    found: Sequence[Measurement], budget: Budget, count: int, slack: float = 1.08
) -> list[Measurement]:
    """What is worth timing for real: the best for the budget, some with slack, the named points."""
    chosen = [choose(found, named)[0] for named in NAMED.values()]
    for asked in (budget, tighter(budget, slack**0.5), tighter(budget, slack)):
        rest = list(found)
        for _ in range(count):
            best, met = choose([found[0], *rest], asked)
            chosen.append(best)
            rest = [item for item in rest if item.pause != best.pause]
            if not met or not rest:
                break
    chosen += skyline(found)[-1:]
    return list({item.pause: item for item in chosen}.values())


def tighter(budget: Budget, slack: float) -> Budget:
    """A budget of time that asks for ``slack`` times the speed; one of accuracy stays."""
    if budget.latency_ms is not None:
        return Budget(latency_ms=budget.latency_ms / slack)
    if budget.speed_up is not None:
        return Budget(speed_up=budget.speed_up * slack)
    return budget


def decide(evaluated: Sequence[Measurement], timed: Sequence[Measurement], budget: Budget) -> Tuned:
    """The choice among finalists by their real times."""
    known = {item.pause: item for item in evaluated}
    both = [join(known[item.pause], item) for item in timed]
    choice, met = choose(both, budget)
    points = {"unpaused": baseline(both)}
    points |= {name: choose(both, named)[0] for name, named in NAMED.items()}
    return Tuned(choice, met, points, tuple(evaluated))
