"""A budget in, a mode out: the paper's two procedures (section 4)."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

from paumer.data.samples import Dataset, spread
from paumer.disk import new_beside
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement, baseline, join, pareto_front, speed_of
from paumer.mode import UNPAUSED, Mode
from paumer.model.directory import find_model
from paumer.pause_config import NO_PAUSE, PAPER_CONFIGS, PauseConfig
from paumer.progress import StepProgress
from paumer.study.cost import CostTable, cost_tables, predict_speed
from paumer.study.grids import one, spaced, two
from paumer.study.speed import SpeedSettings, time_modes
from paumer.study.sweep import Sweep, describe
from paumer.study.tradeoff import Budget, choose

NAMED: Mapping[str, Budget] = {
    "accurate": Budget(max_drop=0.3),
    "balanced": Budget(max_drop=1.0),
    "fast": Budget(max_drop=3.0),
}
"""Operating points that every tuned model gets beside ``unpaused``: the fastest that lose at most
so many points."""


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How a mode is searched for.

    ``template`` pauses, and all modes of the search are like it but for their stages.
    ``procedure`` is the paper's first (``filter``: time many, evaluate those that are fast enough)
    or second (``layers``: one block after the other, until another pause no longer helps); None
    takes the first for a budget of time and the second for one of accuracy. ``most`` is how many
    the first one evaluates, ``finalists`` how many are timed for real at the end, in batches of
    ``timed_batch``.
    """

    procedure: Literal["filter", "layers"] | None = None
    template: Mode = Mode(pause=PAPER_CONFIGS[0])  # noqa: RUF009  # Frozen.
    most: int = 60
    finalists: int = 6
    batch: int = 8
    timed_batch: int = 1
    speed: SpeedSettings = field(default_factory=SpeedSettings)

    def __post_init__(self) -> None:
        for name in ("most", "finalists", "batch", "timed_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if not self.template.pause:  # Such a mode forgets how it would pause.
            raise ValueError(f'nothing pauses in the template "{self.template}": give any stages')


@dataclass(frozen=True)
class Tuned:
    """The choice, whether it keeps within the budget, named points, and all that was evaluated.

    ``choice`` and ``points`` were timed for real in one run; ``evaluated`` has predicted speeds.
    """

    choice: Measurement
    met: bool
    points: dict[str, Measurement]
    evaluated: tuple[Measurement, ...]
    budget: Budget


def tune(
    predictor: Predictor,
    dataset: Dataset,
    budget: Budget,
    directory: Path,
    settings: TuneSettings | None = None,
    indices: Sequence[int] | None = None,
    progress: StepProgress = lambda *_: None,
) -> Tuned:
    """The best mode for a budget, for images like the first one, on this machine.

    What was counted is kept in ``directory`` and not counted again.
    """
    settings = settings or TuneSettings()
    template = settings.template
    # After the last block a pause means something only with early exit.
    last = predictor.network.backbone.depth + template.early_exit
    modes = [replace(template, pause=pause) for pause in paper_configs(last)]
    for mode in modes:
        predictor.mode(mode)
    image, timing = dataset[0].image, (settings.speed, settings.timed_batch)
    tables = cost_tables(
        predictor, image, [template.size], *timing, partial(progress, "timing parts")
    )

    def evaluate(modes: Sequence[Mode]) -> list[Measurement]:
        """What modes get right, and their predicted speed."""
        inference = Inference(batch=settings.batch)
        sweep = Sweep(predictor, dataset, modes, directory, inference, indices)
        # Each sweep has a folder of its own name: other weights or data never meet old counts.
        sweep = replace(sweep, directory=directory / sweep.fingerprint()[:12])
        tallies = sweep.run(progress=partial(progress, f"evaluating {len(modes)}"))
        assert tallies is not None
        size, data = (image.shape[0], image.shape[1]), f"{dataset.name} {dataset.split}"
        described = describe(predictor, modes, tallies, size, data)
        return [join(item, predict_speed(tables, item.mode)) for item in described]

    start = list(dict.fromkeys([UNPAUSED, replace(template, pause=NO_PAUSE)]))
    found = evaluate([*start, *modes])
    if own := [mode for mode in known_modes(predictor, template) if mode not in modes]:
        found += evaluate(own)
    procedure = settings.procedure or ("layers" if budget.max_drop is not None else "filter")
    if procedure == "layers":
        # Nearly all can exit once the auxiliary head is as good as the whole network.
        ratios = [*spaced(9), 0.95] if template.early_exit else spaced(9)
        for each in dict.fromkeys([budget, *NAMED.values()]):
            found += search(evaluate, template, each, last, ratios, found[: len(start)])
    else:
        found += evaluate(fast_enough(tables, budget, last, settings))
    found = list({item.mode: item for item in found}.values())
    best = [item.mode for item in finalists(found, budget, settings.finalists)]
    speeds = time_modes(predictor, image, best, *timing, partial(progress, "timing finalists"))
    return decide(found, speeds, budget)


def known_modes(predictor: Predictor, template: Mode) -> list[Mode]:
    """The operating points like the template but for their stages, which have fixed ratios.

    A model has them from before, or from the one that its training started from.
    """
    alike = [m for m in predictor.modes.values() if replace(m, pause=template.pause) == template]
    fixed = [m for m in alike if all(isinstance(ratio, float) for _, ratio in m.pause.stages)]
    return list(dict.fromkeys(mode for mode in fixed if mode.pause))


def copy_path(model: str | Path) -> Path | None:
    """Where the copy of a model goes that is not a folder of the user's, else None."""
    return None if Path(model).is_dir() else Path(f"{Path(model).name}-tuned")


def own_copy(model: str | Path) -> Path:
    """The directory that keeps a model's operating points; of a built-in or hub one a copy."""
    directory, copy = find_model(str(model)), copy_path(model)
    if copy is None:
        return directory
    if copy.exists():
        raise ValueError(
            f'operating points of "{model}" go to a copy, and "{copy}" exists: '
            f"tune that one (--model ./{copy}), or move it away"
        )
    with new_beside(copy) as new:
        shutil.copytree(directory, new, dirs_exist_ok=True)
        new.rename(copy.resolve())
    return copy


def paper_configs(depth: int) -> list[PauseConfig]:
    """Those of the paper's 13 that a backbone of so many blocks can run."""
    return [pause for pause in PAPER_CONFIGS if pause.blocks[-1] < depth]


def search(
    measure: Callable[[Sequence[Mode]], Sequence[Measurement]],
    template: Mode,
    budget: Budget,
    depth: int,
    ratios: Sequence[float],
    start: Sequence[Measurement],
    most: int = 4,
) -> list[Measurement]:
    """The paper's second procedure (section 4): one block after the other.

    All single pauses are measured and the best for the budget is kept; then a second pause at a
    later block is added to it in all ways, and so on, until another one no longer helps. All modes
    are the ``template`` with other stages; ``start`` was measured without pausing.
    """
    measured, best = list(start), start[-1]
    for _ in range(most):
        stages = best.mode.pause.stages
        last = stages[-1][0] if stages else 0
        added = product(range(last + 1, depth), ratios)
        candidates = [replace(template, pause=PauseConfig((*stages, stage))) for stage in added]
        if not candidates:
            break
        measured += measure(candidates)
        better, _ = choose(measured, budget)
        if better.mode == best.mode or len(better.mode.pause.stages) < len(stages):
            break
        best = better
    return measured


def fast_enough(
    tables: Mapping[int | None, CostTable], budget: Budget, depth: int, settings: TuneSettings
) -> list[Mode]:
    """Of all single pauses and pairs, some that meet a budget of time, spread over those near it.

    The slowest pause least, so they lose least; but predictions are not exact, so some are up to
    1.15 times as fast as need be. A budget of accuracy filters nothing.
    """
    grid = [*paper_configs(depth), *one(depth), *two(depth, 1, depth - 1)]
    modes = [replace(settings.template, pause=pause) for pause in dict.fromkeys(grid)]
    items = sorted((predict_speed(tables, mode) for mode in modes), key=speed_of)
    base = predict_speed(tables, UNPAUSED)
    within = [item for item in items if budget.max_drop or budget.meets(item, base)]
    if not within:  # Nothing is fast enough: the fastest show how near it gets.
        return [item.mode for item in items[-settings.most :]]
    if budget.max_drop is None:
        within = [item for item in within if speed_of(item) <= 1.15 * speed_of(within[0])]
    return [within[number].mode for number in spread(len(within), settings.most)]


def finalists(found: Sequence[Measurement], budget: Budget, count: int) -> list[Measurement]:
    """What is worth timing for real: the best for the budget, some with slack, the named points."""
    chosen = [choose(found, named)[0] for named in NAMED.values()]
    for slack in (1.0, 1.08**0.5, 1.08):
        rest = list(found)
        for _ in range(count):
            best, met = choose([found[0], *rest], budget.tighter(slack))
            chosen.append(best)
            rest = [item for item in rest if item.mode != best.mode]
            if not met or not rest:
                break
    chosen += pareto_front(found)[-1:]
    return list({item.mode: item for item in chosen}.values())


def decide(evaluated: Sequence[Measurement], timed: Sequence[Measurement], budget: Budget) -> Tuned:
    """The choice among finalists by their real times."""
    known = {item.mode: item for item in evaluated}
    both = [join(known[item.mode], item) for item in timed]
    choice, met = choose(both, budget)
    points = {name: choose(both, named)[0] for name, named in NAMED.items()}
    return Tuned(choice, met, {"unpaused": baseline(both), **points}, tuple(evaluated), budget)
