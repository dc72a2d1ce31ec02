"""A cost table of this machine, from which the speed of any pause configuration follows.

The parts of the forward are timed once at a ladder of token counts: a block, the decoder, pausing
and assembling. A configuration's time is the sum of its parts. Tables are kept by machine, model
shape, device, precision, threads and batch.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from paumer import pausing
from paumer.criteria import entropy
from paumer.disk import cache_directory, replace_file
from paumer.model.backbone import gather_table
from paumer.model.decoders import TokenDecoder, upsample
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter
from paumer.model.walk import Walk
from paumer.pause_config import PauseConfig, Threshold
from paumer.study.speed import (
    Progress,
    SpeedSettings,
    environment,
    in_words,
    setting,
    time_interleaved,
)
from paumer.study.tradeoff import Measurement

ROUNDS = 15
Ladder = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CostTable:
    """Seconds of the parts of one batch's forward, by token count where it matters.

    ``block`` counts prefix tokens too; ``decoder``, ``pausing`` and ``assembling`` count patches.
    """

    environment: dict[str, Any]
    patches: int
    prefix: int
    depth: int
    batch: int
    embed: float
    upsampling: float
    block: Ladder
    decoder: Ladder
    pausing: Ladder
    assembling: Ladder
    windows: int = 1
    """Into how many windows a picture is cut; the times are those of a batch of windows."""
    rejoin: int | None = None
    """The block before which paused patches come back, if not only in the decoder."""
    context: bool = False
    """Whether the mean of the patches that pause goes on."""

    def seconds(self, pause: PauseConfig, early_exit: bool = False) -> float:
        """The predicted time of one batch."""
        pause.check(self.depth, early_exit, self.rejoin)
        active, going_on = self.patches, {}
        for block, share in pause.stages:
            if isinstance(share, Threshold):
                raise ValueError(f'the cost of "{pause}" depends on the picture: give shares')
            active = going_on[block] = pausing.going_on(active, share)
        return self.seconds_of(going_on, early_exit)

    def seconds_of(self, going_on: Mapping[int, int], early_exit: bool = False) -> float:
        """The predicted time of one batch when so many patches go on after some blocks."""
        active, means, total = self.patches, 0, self.embed + self.upsampling
        for number in range(1, self.depth + 1):
            if number == self.rejoin:
                active, means = self.patches, 0
            total += between(self.block, active + self.prefix + means)
            if number in going_on:
                total += between(self.pausing, active)
                means += self.context and going_on[number] < active
                active = going_on[number]
                total += between(self.assembling, active)
        exits = early_exit and bool(going_on)
        return total + between(self.decoder, active if exits else self.patches)

    def predict(self, pause: PauseConfig, early_exit: bool = False, **known: Any) -> Measurement:
        """The predicted speed as a measurement, with what else is ``known`` of it."""
        seconds = self.seconds(pause, early_exit)
        return Measurement(
            pause=pause,
            early_exit=early_exit and bool(pause),
            predicted=True,
            images_per_second=self.batch / seconds / self.windows,
            latency_ms=1000 * seconds * self.windows,
            speed_up=self.seconds(NO_PAUSE) / seconds,
            where=in_words(self.environment),
            when=self.environment["when"],
            **known,
        )

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The table written by ``to_json``."""
        ladders = ("block", "decoder", "pausing", "assembling")
        steps = {name: tuple((int(n), float(s)) for n, s in values[name]) for name in ladders}
        return cls(**{**values, **steps})


def measure_cost(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    settings: SpeedSettings,
    progress: Progress | None = None,
) -> CostTable:
    """Time the parts of the forward for one batch of pictures of whole patches."""
    model = model.eval()
    with setting(images.device, settings):
        walk = model.start(images)
        grid = model.grid(images)
        patches, prefix = walk.places.shape[1], model.backbone.prefix
        counts = ladder(patches)
        runs: dict[tuple[str, int], Callable[[], Any]] = {("embed", 0): lambda: model.start(images)}
        if settings.full_size:
            logits = model(images, full_size=False).logits
            size = tuple(images.shape[2:])
            runs["upsampling", 0] = lambda: upsample(logits, size)
        for count in counts:
            _add_runs(runs, model, walk, count, grid)
        seconds = time_interleaved(
            list(runs.values()), images.device, settings.rounds, settings.warmup, progress
        ).min(0)
    found = dict(zip(runs, seconds.tolist(), strict=True))

    def steps(name: str, extra: int = 0, share: int = 1) -> Ladder:
        return tuple((n + extra, found[name, n] / share) for n in counts if (name, n) in found)

    return CostTable(
        environment=environment(images, settings),
        patches=patches,
        prefix=prefix,
        depth=model.backbone.depth,
        batch=len(images),
        embed=found["embed", 0],
        upsampling=found.get(("upsampling", 0), 0.0),
        block=steps("block", prefix, model.backbone.depth),
        decoder=steps("decoder"),
        pausing=steps("pausing"),
        assembling=steps("assembling"),
        rejoin=model.rejoin,
        context=model.context,
    )


def _add_runs(
    runs: dict[tuple[str, int], Callable[[], Any]],
    model: PausingSegmenter,
    whole: Walk,
    count: int,
    grid: tuple[int, int],
) -> None:
    """What to time at ``count`` active patches."""
    tokens, prefix, depth = whole.tokens, model.backbone.prefix, model.backbone.depth
    kept = torch.arange(count, device=tokens.device).expand(len(tokens), -1)
    rows = pausing.rows_of(kept, tokens.shape[1], prefix)
    some = pausing.pause(tokens, rows)
    table = None if whole.table is None else gather_table(whole.table, kept)
    walk = Walk(some, whole.places[:, :count], table)
    # All blocks one after the other, so that none finds its weights in the cache.
    runs["block", count] = lambda: model.advance(walk, 0, depth)
    runs["pausing", count] = lambda: model.pause(walk, 1, 0.5, entropy)
    runs["assembling", count] = lambda: pausing.assemble(some, [(tokens, rows)])
    if isinstance(model.decoder, TokenDecoder):
        decoder = model.decoder
        runs["decoder", count] = lambda: decoder.token_logits(some[:, prefix:])
    elif count == whole.places.shape[1]:
        runs["decoder", count] = lambda: model.decoder(some[:, prefix:], grid)


def ladder(patches: int) -> list[int]:
    """Token counts to time: close together where few are left, and where kernels change."""
    counts = {max(1, round(patches * share)) for share in _SHARES}
    # Attention kernels change their tiling at such counts (prefix tokens included).
    edges = {edge + side for edge in (192, 768) for side in (-2, -1)}
    return sorted(counts | {edge for edge in edges if edge < patches})


_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def between(steps: Sequence[tuple[int, float]], count: int) -> float:
    """The time at a count, on the straight line between its neighbours on the ladder."""
    if len(steps) == 1 or count >= steps[-1][0]:
        return steps[-1][1]
    for (low, fast), (high, slow) in pairwise(steps):
        if count <= high:
            return fast + (slow - fast) * (max(count, low) - low) / (high - low)
    raise AssertionError("unreachable: the ladder ends with the largest count")


def cached_cost(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    settings: SpeedSettings,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> CostTable:
    """The cost table of this machine and setting, measured if it is not at hand yet."""
    directory = directory or cache_directory()
    settings = replace(settings, rounds=ROUNDS)
    what = environment(images, settings)
    shape = {key: what[key] for key in what if key not in ("when", "rounds")}
    assert model.config
    shape |= {"backbone": model.config.backbone, "decoder": model.config.decoder}
    shape |= {"classes": len(model.config.classes), **dict(model.config.decoder_options)}
    shape |= {"context": True} if model.context else {}
    shape |= {"aux_norm": True} if model.config.aux_norm else {}
    name = hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=8).hexdigest()
    path = directory / f"cost-{name}.json"
    try:
        table = CostTable.from_json(json.loads(path.read_text("utf-8")))
        return replace(table, rejoin=model.rejoin)  # Changes no part's time.
    except (OSError, ValueError, TypeError, KeyError):
        table = measure_cost(model, images, settings, progress)
    with suppress(OSError):  # A cache that cannot be written costs time, not results.
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(table.to_json()).encode())
    return table
