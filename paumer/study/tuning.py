"""A budget in, a mode out: the paper's two procedures (section 4), and the whole dial."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from paumer.arguments import at_least_one, check_fields
from paumer.data.groups import group_images
from paumer.data.samples import Dataset, spread
from paumer.disk import new_beside
from paumer.inference.exported import is_exported
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement, join, miou_of, pareto_front, speed_of
from paumer.mode import UNPAUSED, Mode
from paumer.model.decoders import TokenDecoder
from paumer.model.directory import find_model
from paumer.pause_config import NO_PAUSE, PAPER_CONFIGS, PauseConfig
from paumer.progress import StepProgress
from paumer.study.accuracy import Tally
from paumer.study.conditions import SHIFTS, Shifted, lost
from paumer.study.cost import CostTable, cost_tables, predict_speed
from paumer.study.dial import SPEEDS, dial_modes, search_dial, smaller_sides
from paumer.study.grids import one, spaced, two
from paumer.study.speed import SpeedSettings, has_fixed_cost, time_modes
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
    or second (``layers``: one block after the other, until another pause no longer helps), or
    ``dial``: sizes, mergings, pauses and exits together. None takes the first for a budget of time
    and the second for one of accuracy. ``most`` is how many the first and the last one evaluate,
    ``finalists`` how many are timed for real at the end, in batches of ``timed_batch``. The choice
    among these is by what they lose at worst: in any group of images (``groups`` as for
    `group_images`), and on so many images (``shifts``) that are made darker, noisier, blurred or
    compressed.
    """

    procedure: Literal["filter", "layers", "dial"] | None = None
    template: Mode = Mode(pause=PAPER_CONFIGS[0])  # noqa: RUF009  # Frozen.
    most: int = 60
    finalists: int = 6
    batch: int = 8
    timed_batch: int = 1
    groups: str | None = None
    shifts: int = 20
    speed: SpeedSettings = field(default_factory=SpeedSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("most", "finalists", "batch", "timed_batch"):
            at_least_one(getattr(self, name), name)
        if self.shifts < 0:
            raise ValueError(f"shifts is {self.shifts}: give at least 0")
        if not self.template.pause:  # Such a mode forgets how it would pause.
            raise ValueError(f'nothing pauses in the template "{self.template}": give any stages')


Losses = Mapping[Mode, Mapping[str, float]]
"""By mode and condition, in mIoU; below 0 where it gains."""


@dataclass(frozen=True)
class Tuned:
    """The choice, whether it keeps within the budget, named points, and all that was evaluated.

    ``choice`` and ``points`` were timed for real in one run; ``evaluated`` has predicted speeds.
    ``losses`` says what each finalist loses against no pausing under each condition.
    """

    choice: Measurement
    met: bool
    points: dict[str, Measurement]
    evaluated: tuple[Measurement, ...]
    budget: Budget
    losses: Losses = field(default_factory=dict)

    def __repr__(self) -> str:
        met = "meets" if self.met else "misses"
        return f'Tuned("{self.choice.mode}" {met} {self.budget}, {len(self.evaluated)} evaluated)'


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
    work = _Tuning(predictor, dataset, directory, settings, indices, progress)
    procedure = settings.procedure or ("layers" if budget.max_drop is not None else "filter")
    found = work.dial(budget) if procedure == "dial" else work.paper(budget, procedure)
    found = list({item.mode: item for item in found}.values())
    best = [item.mode for item in finalists(found, budget, settings.finalists)]
    best = list(dict.fromkeys([UNPAUSED, *best]))
    losses = work.losses(best)
    timing = (settings.speed, settings.timed_batch, partial(progress, "timing finalists"))
    speeds = time_modes(predictor, work.image, best, *timing)
    return decide(found, speeds, budget, losses)


@dataclass
class _Tuning:
    """What is counted for one choice, and kept."""

    predictor: Predictor
    dataset: Dataset
    directory: Path
    settings: TuneSettings
    indices: Sequence[int] | None
    progress: StepProgress
    tallies: dict[Mode, Tally] = field(default_factory=dict)
    """Of all modes on the images as they are."""

    def __post_init__(self) -> None:
        self.image, self.depth = self.dataset[0].image, self.predictor.network.backbone.depth
        self.size = (self.image.shape[0], self.image.shape[1])
        self.start = list(
            dict.fromkeys([UNPAUSED, replace(self.settings.template, pause=NO_PAUSE)])
        )
        self.tables: Mapping[int | None, CostTable] = {}

    def paper(self, budget: Budget, procedure: str) -> list[Measurement]:
        """What the paper's procedures evaluate."""
        template = self.settings.template
        # After the last block a pause means something only with early exit.
        last = self.depth + template.early_exit
        modes = [replace(template, pause=pause) for pause in paper_configs(last)]
        for mode in modes:
            self.predictor.mode(mode)
        self._time_parts([template.size])
        found = self.evaluate([*self.start, *modes])
        if own := [mode for mode in known_modes(self.predictor, template) if mode not in modes]:
            found += self.evaluate(own)
        if procedure == "filter":
            return found + self.evaluate(fast_enough(self.tables, budget, last, self.settings))
        # Nearly all can exit once the auxiliary head is as good as the whole network.
        ratios = [*spaced(9), 0.95] if template.early_exit else spaced(9)
        for each in dict.fromkeys([budget, *NAMED.values()]):
            start = found[: len(self.start)]
            found += search(self.evaluate, template, each, last, ratios, start)
        return found

    def dial(self, budget: Budget) -> list[Measurement]:
        """What a search through sizes, mergings, pauses and exits evaluates."""
        predictor, template = self.predictor, self.settings.template
        side = min(predictor.scaled(self.size, Mode(size=template.size)))
        sizes = smaller_sides(side, max(predictor.patch))
        self._time_parts([template.size, *sizes])
        exits = isinstance(predictor.network.decoder, TokenDecoder)
        modes = dial_modes(self.depth, sizes, template, exits)
        found = self.evaluate([*self.start, *known_modes(predictor, template)])
        whole = predict_speed(self.tables, UNPAUSED)
        asked = budget.speed_up
        if budget.latency_ms is not None:
            asked = (whole.latency_ms or 0.0) / budget.latency_ms
        speeds = sorted({*SPEEDS, *([asked] if asked and asked > 1 else [])})
        most = self.settings.most
        predict = partial(predict_speed, self.tables)
        return found + search_dial(self.evaluate, predict, modes, speeds, most)

    def _time_parts(self, sizes: Sequence[int | None]) -> None:
        timing = (self.settings.speed, self.settings.timed_batch)
        progress = partial(self.progress, "timing parts")
        self.tables = cost_tables(self.predictor, self.image, sizes, *timing, progress)

    def evaluate(self, modes: Sequence[Mode], few: bool = False) -> list[Measurement]:
        """What modes get right, on all images or on a third of them, and their predicted speed."""
        dataset, indices = self.dataset, self.indices
        if few:
            every = range(len(dataset)) if indices is None else indices
            indices = [every[n] for n in spread(len(every), -(-len(every) // 3))]
        tallies = self.count(modes, dataset, indices, f"evaluating {len(modes)}")
        if not few:
            self.tallies.update(zip(modes, tallies, strict=True))
        data = f"{dataset.name} {dataset.split}"
        described = describe(self.predictor, modes, tallies, self.size, data)
        return [join(item, predict_speed(self.tables, item.mode)) for item in described]

    def count(
        self, modes: Sequence[Mode], images: Dataset, indices: Sequence[int] | None, title: str
    ) -> list[Tally]:
        """What modes get right on images, unless it was counted before."""
        inference = Inference(batch=self.settings.batch)
        sweep = Sweep(self.predictor, images, modes, self.directory, inference, indices)
        # Each sweep has a folder of its own name: other weights or data never meet old counts.
        sweep = replace(sweep, directory=self.directory / sweep.fingerprint()[:12])
        tallies = sweep.run(progress=partial(self.progress, title))
        assert tallies is not None
        return tallies

    def losses(self, modes: Sequence[Mode]) -> Losses:
        """What modes lose against no pausing in each group of images and by each shift."""
        found: dict[str, Mapping[Mode, float]] = {}
        counted = self.tallies[UNPAUSED].indices
        if self.settings.groups is not None:
            known = {mode: self.tallies[mode] for mode in modes}
            for name, group in group_images(self.dataset, self.settings.groups).items():
                if np.isin(group, counted).any():
                    found[name] = lost(known, group)
        some = [int(counted[n]) for n in spread(len(counted), self.settings.shifts or 1)]
        for shift in SHIFTS if self.settings.shifts else ():
            shifted = Shifted(self.dataset, shift)
            tallies = self.count(modes, shifted, some, f"evaluating {shift} images")
            found[shift] = lost(dict(zip(modes, tallies, strict=True)))
        return {mode: {name: by[mode] for name, by in found.items()} for mode in modes}


def known_modes(predictor: Predictor, template: Mode) -> list[Mode]:
    """The operating points with a fixed cost at the template's size.

    A model has them from before, or from the one that its training started from. With a template
    that asks for more than pausing by entropy, they differ from it in their stages alone.
    """
    points = dict.fromkeys(mode for mode in predictor.modes.values() if mode.pause)
    fixed = [mode for mode in points if has_fixed_cost(mode) and mode.size == template.size]
    if template == Mode(pause=template.pause):
        return fixed
    return [mode for mode in fixed if replace(mode, pause=template.pause) == template]


def copy_path(model: str | Path) -> Path | None:
    """Where the copy of a model goes that is not a folder of the user's, else None."""
    return None if Path(model).exists() else Path(f"{Path(model).name}-tuned")


def own_copy(model: str | Path) -> Path:
    """The directory that keeps a model's operating points; of a built-in or hub one a copy.

    A file keeps them itself, and what was counted lies beside it.
    """
    if is_exported(model):
        if Path(model).suffix != ".onnx":
            raise ValueError(
                f'"{model}" cannot keep other operating points than it was exported with: '
                f"tune the model, and export it again"
            )
        return Path(model).with_name(f"{Path(model).stem}-tuned")
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


def decide(
    evaluated: Sequence[Measurement],
    timed: Sequence[Measurement],
    budget: Budget,
    losses: Losses = MappingProxyType({}),
) -> Tuned:
    """The choice among finalists by their real times and by what they lose at worst."""
    known = {item.mode: item for item in evaluated}
    both = {item.mode: join(known[item.mode], item) for item in timed}
    best = miou_of(both[UNPAUSED])
    for mode, item in both.items():
        # What they lose on the images as they are counts too.
        conditions = {item.data or "all": best - miou_of(item), **losses.get(mode, {})}
        on = max(conditions, key=conditions.__getitem__)
        both[mode] = replace(item, worst_drop=conditions[on], worst_on=on)
    # As if each lost everywhere what it loses at worst.
    worst = [replace(item, miou=best - (item.worst_drop or 0.0)) for item in both.values()]

    def pick(budget: Budget) -> tuple[Measurement, bool]:
        found, met = choose(worst, budget)
        return both[found.mode], met

    choice, met = pick(budget)
    points = {name: pick(named)[0] for name, named in NAMED.items()}
    points = {"unpaused": both[UNPAUSED], **points}
    return Tuned(choice, met, points, tuple(evaluated), budget, losses)
