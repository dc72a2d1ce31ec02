"""Pausing by threshold: each picture pauses what is clear in it, so easy ones cost less.

A threshold is calibrated on pictures so that their average cost meets a target. Fixed shares of
the same predicted cost after the same blocks stand beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paumer.criteria import entropy
from paumer.data.datasets import Dataset
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter
from paumer.model.walk import Walk
from paumer.pause_config import Amount, PauseConfig, Threshold
from paumer.predict import Inference, Predictor
from paumer.study.cost import CostTable, cached_cost
from paumer.study.speed import in_words, measure_pictures
from paumer.study.tradeoff import Budget, Measurement
from paumer.study.tuning import Evaluation, Say, Tuned, TuneSettings, decide, finalists

BLOCKS = ((3,), (3, 5), (3, 5, 7))
"""After which blocks pictures pause by threshold."""

SPEED_UPS = (1.2, 1.35, 1.5, 1.65, 1.8, 2.0)
"""Average speed-ups for which thresholds are calibrated."""

Windows = Float[Tensor, "windows 3 h w"]


@dataclass(frozen=True)
class Pair:
    """A threshold and fixed shares of the same average cost, after the same blocks."""

    adaptive: Measurement
    fixed: Measurement


@dataclass(frozen=True)
class AdaptiveTuned:
    """The threshold chosen for a budget, timed for real, and all that was compared."""

    tuned: Tuned
    pairs: tuple[Pair, ...]

    @property
    def gain(self) -> float:
        """Mean difference in mIoU of thresholds to fixed shares of the same cost."""
        return float(np.mean([(p.adaptive.miou or 0) - (p.fixed.miou or 0) for p in self.pairs]))


def tune_adaptive(
    predictor: Predictor,
    dataset: Dataset,
    budget: Budget,
    directory: Path,
    settings: TuneSettings | None = None,
    indices: Sequence[int] | None = None,
    say: Say = lambda *_: None,
) -> AdaptiveTuned:
    """The best threshold for a budget on the *average* cost of pictures, one at a time.

    Thresholds are calibrated and timed on pictures of the first one's size.
    """
    settings = settings or TuneSettings()
    predictor.network.check(PauseConfig(), settings.early_exit)
    places = range(len(dataset)) if indices is None else indices
    pictures = whole_windows(predictor, dataset, places)
    table = cached_cost(
        predictor.network,
        pictures[0][:1],
        settings.speed,
        progress=lambda *done: say("timing parts", *done),
    )
    table = replace(table, windows=len(pictures[0]))
    found = calibrate(predictor.network, pictures, table, budget, settings.early_exit, say)
    if not found:
        raise ValueError("no threshold gains speed on these pictures: is the model trained?")
    evaluate = Evaluation(predictor, dataset, directory, table, settings, indices, say)
    base, *fixed = evaluate([NO_PAUSE, *(shares for _, shares, _ in found)])
    adaptive = [
        replace(item, predicted=True, **average_speed(table, seconds))
        for item, (_, _, seconds) in zip(
            evaluate([threshold for threshold, _, _ in found]), found, strict=True
        )
    ]
    best = finalists([base, *adaptive], budget, settings.finalists)
    ways = [Inference().at(item) for item in (base, *best)]
    timed = measure_pictures(
        predictor.network,
        pictures[:8],
        list(dict.fromkeys(ways)),
        settings.speed,
        lambda *done: say("timing finalists", *done),
    )
    pairs = tuple(Pair(a, f) for a, f in zip(adaptive, fixed, strict=True))
    return AdaptiveTuned(decide([base, *adaptive], timed, budget), pairs)


def whole_windows(predictor: Predictor, dataset: Dataset, places: Sequence[int]) -> list[Windows]:
    """The windows of each picture as the network sees them, of pictures of the first one's size."""
    pictures = [predictor.network_inputs(dataset[place].image) for place in places]
    return [windows for windows in pictures if windows.shape == pictures[0].shape]


def calibrate(
    network: PausingSegmenter,
    pictures: Sequence[Windows],
    table: CostTable,
    budget: Budget,
    early_exit: bool = False,
    say: Say = lambda *_: None,
) -> list[tuple[PauseConfig, PauseConfig, float]]:
    """Thresholds for several average speed-ups, each with fixed shares as dear, and its seconds."""
    unpaused = table.seconds(NO_PAUSE)
    speed_ups = {*SPEED_UPS}
    wanted = budget.speed_up
    if budget.latency_ms is not None:
        wanted = 1000 * unpaused * table.windows / budget.latency_ms
    if wanted is not None and wanted > 1:
        speed_ups |= {wanted, wanted * 1.04, wanted * 1.08}
    found = []
    choices = [b for b in BLOCKS if b[-1] < network.pausing_depth] or [(1,)]
    for number, blocks in enumerate(choices):
        say("calibrating", number, len(choices))
        walks = walk_to(network, pictures, blocks[0])
        for speed_up in sorted(speed_ups):
            seconds = unpaused / speed_up
            threshold = by_threshold(network, walks, table, blocks, seconds, early_exit)
            shares = by_share(table, blocks, seconds, early_exit)
            if threshold and shares:
                found.append((threshold[0], shares, threshold[1]))
    say("calibrating", len(choices), len(choices))
    return found


def walk_to(network: PausingSegmenter, pictures: Sequence[Windows], block: int) -> list[Walk]:
    """Every picture after a block."""
    with torch.inference_mode():
        return [network.advance(network.start(windows), 0, block) for windows in pictures]


def by_threshold(
    network: PausingSegmenter,
    walks: Sequence[Walk],
    table: CostTable,
    blocks: Sequence[int],
    seconds: float,
    early_exit: bool = False,
) -> tuple[PauseConfig, float] | None:
    """The threshold at which pictures take ``seconds`` a window on average, and what they take.

    ``walks`` are the pictures after the first of the blocks. None if that fast is not possible.
    """
    with torch.inference_mode():
        prefix = network.backbone.prefix
        scores = [entropy(network.aux_head(w.tokens)[:, prefix:], w.places) for w in walks]
    ranked = np.sort(torch.cat([score.flatten() for score in scores]).double().cpu().numpy())

    def pause_below(rank: int) -> PauseConfig:
        # One entropy for all blocks, rounded so that its spelling stays short.
        return _same(blocks, Threshold(float(f"{ranked[rank]:.5g}")))

    def mean(pause: PauseConfig) -> float:
        with torch.inference_mode():
            each = [_seconds(network, walk, pause, table, early_exit) for walk in walks]
        return sum(each) / sum(len(walk.tokens) for walk in walks)

    low, high = 0, len(ranked) - 1
    if mean(pause_below(high)) > seconds:
        return None
    while high - low > max(1, len(ranked) // 2000):
        middle = (low + high) // 2
        low, high = (low, middle) if mean(pause_below(middle)) <= seconds else (middle, high)
    return pause_below(high), mean(pause_below(high))


def by_share(
    table: CostTable, blocks: Sequence[int], seconds: float, early_exit: bool = False
) -> PauseConfig | None:
    """The share, the same after each of the blocks, at which a batch takes ``seconds``."""
    shares = [number / 1000 for number in range(1, 980)]
    for share in shares:
        if table.seconds(_same(blocks, share), early_exit) <= seconds:
            return _same(blocks, share)
    return None


def average_speed(table: CostTable, seconds: float) -> dict[str, Any]:
    """Of pictures whose windows take so many seconds on average, what a measurement says."""
    return {
        "images_per_second": 1 / seconds / table.windows,
        "latency_ms": 1000 * seconds * table.windows,
        "speed_up": table.seconds(NO_PAUSE) / seconds,
        "where": in_words(table.environment),
        "when": table.environment["when"],
    }


def _seconds(
    network: PausingSegmenter, walk: Walk, pause: PauseConfig, table: CostTable, early_exit: bool
) -> float:
    """The predicted time of a picture's windows, which stand after the first pausing block."""
    walks, done = [walk], pause.blocks[0]
    for block, amount in pause.stages:
        walks = [network.advance(w, done, block) for w in walks]
        walks = [part for w in walks for part in network.pause(w, block, amount, entropy)]
        done = block
    return sum(
        len(w.tokens) * table.seconds_of({s.block: s.kept.shape[1] for s in w.stages}, early_exit)
        for w in walks
    )


def _same(blocks: Sequence[int], amount: Amount) -> PauseConfig:
    return PauseConfig(tuple((block, amount) for block in blocks))
