"""A cost table of this machine, from which the speed of any mode follows.

The parts of the forward are timed once at a ladder of token counts: a block, the decoder, pausing
by each criterion, and assembling. A mode's time is the sum of its parts. Tables are kept by
machine, model shape, device, precision, threads and batch.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from paumer import criteria, pausing
from paumer.criteria import Criterion
from paumer.disk import cache_directory, replace_file
from paumer.inference.engines import FileEngine
from paumer.inference.predictor import Predictor
from paumer.measurement import Measurement, join
from paumer.mode import CRITERIA, UNPAUSED, Mode
from paumer.model.backbone import gather_table
from paumer.model.decoders import TokenDecoder, upsample
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Merging, Pause, Walk, active_counts
from paumer.progress import Progress
from paumer.study import speed as timing
from paumer.study.speed import SpeedSettings

ROUNDS = 15
Ladder = Sequence[Sequence[float]]
"""Counts of tokens, rising, each with its seconds."""


@dataclass(frozen=True)
class CostTable:
    """Seconds of the parts of one batch's forward, by token count where it matters.

    ``block`` and ``weighted``, a block after some patches were merged, count prefix tokens too; the
    others count patches.
    """

    environment: dict[str, object]
    patches: int
    prefix: int
    depth: int
    batch: int
    embed: float
    upsampling: float
    block: Ladder
    weighted: Ladder
    decoder: Ladder
    pausing: dict[str, Ladder]
    """By what scores the patches, and whether classes are protected (see ``scoring``)."""
    assembling: Ladder
    merging: Ladder
    windows: int = 1
    """Into how many windows an image is cut; the times are those of a batch of windows."""
    context: bool = False
    """Whether the mean of the patches that pause continues."""
    by_token: bool = True
    """Whether the decoder takes any tokens, not only the whole grid."""

    def seconds(self, mode: Mode = UNPAUSED) -> float:
        """The predicted time of one batch."""
        mode.pause.check(self.depth, mode.early_exit)
        counts = active_counts(self.patches, mode)
        active, means, paused, total = self.patches, 0, 0, self.embed + self.upsampling
        block = self.block
        for number in range(1, self.depth + 1):
            total += between(block, active + self.prefix + means) if active else 0.0
            for _, merges, left in (count for count in counts if count[0] == number):
                if merges:
                    total += between(self.merging, active) if left < active else 0.0
                    block = self.weighted if left < active else block
                else:
                    total += between(self.pausing[scoring(mode)], active)
                    means += self.context and left < active
                    total += between(self.assembling, left)
                    paused += active - left
                active = left
        decoded = active if mode.early_exit else active + paused
        if not self.by_token:
            decoded = self.patches
        return total + (between(self.decoder, decoded) if decoded else 0.0)


def predict_speed(tables: Mapping[int | None, CostTable], mode: Mode) -> Measurement:
    """The predicted speed of a mode, whose speed-up is over no pausing at the usual size."""
    table, base = tables[mode.size], tables[None]
    seconds = table.seconds(mode)
    return Measurement(
        mode=mode,
        predicted=True,
        images_per_second=table.batch / seconds / table.windows,
        latency_ms=1000 * seconds * table.windows,
        speed_up=base.seconds() * base.windows / (seconds * table.windows),
        where=timing.in_words(base.environment),
        when=str(table.environment["when"]),
    )


def scoring(mode: Mode) -> str:
    """What scores the patches: what a study knows beside the logits costs nothing."""
    name = mode.criterion if mode.criterion in CRITERIA else "entropy"
    return f"{name}, protecting" if mode.protect else name


def _scorings(grid: tuple[int, int] = (1, 1)) -> dict[str, Criterion]:
    plain = {name: criteria.named(name, grid) for name in CRITERIA}
    return plain | {f"{n}, protecting": criteria.protecting(c, [0]) for n, c in plain.items()}


def measure_cost(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    settings: SpeedSettings,
    progress: Progress | None = None,
) -> CostTable:
    """Time the parts of the forward for one batch of images of whole patches."""
    model = model.eval()
    runs: dict[tuple[str, int], Callable[[], Any]] = {("embed", 0): lambda: model.start(images)}
    with timing.setting(images.device, settings):
        walk = model.start(images)
        patches, prefix = walk.patch_index.shape[1], model.backbone.prefix
        if settings.full_size:
            logits = model(images, full_size=False).logits
            runs["upsampling", 0] = lambda: upsample(logits, tuple(images.shape[2:]))
        for count in ladder(patches):
            _add_runs(runs, model, walk, count, model.grid(images))
        seconds = timing.time_interleaved(
            list(runs.values()), images.device, settings.rounds, settings.warmup, progress
        ).min(0)
    found = dict(zip(runs, seconds.tolist(), strict=True))

    def steps(part: str, extra: int = 0, times: int = 1) -> Ladder:
        return [[n + extra, found[name, n] / times] for name, n in found if name == part]

    return CostTable(
        environment=timing.environment(images, settings),
        patches=patches,
        prefix=prefix,
        depth=model.backbone.depth,
        batch=len(images),
        embed=found["embed", 0],
        upsampling=found.get(("upsampling", 0), 0.0),
        block=steps("block", prefix, model.backbone.depth),
        weighted=steps("weighted", prefix, model.backbone.depth),
        decoder=steps("decoder"),
        pausing={name: steps(name) for name in _scorings()},
        assembling=steps("assembling"),
        merging=steps("merging"),
        context=model.context,
        by_token=isinstance(model.decoder, TokenDecoder),
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
    walk = Walk(some, whole.patch_index[:, :count], table)

    # All blocks one after the other, so that none finds its weights in the cache.
    def run_blocks(here: Walk) -> None:
        for block in range(1, depth + 1):
            here = model.run_block(here, block)

    runs["block", count] = partial(run_blocks, walk)
    weighted = replace(walk, sizes=torch.full_like(some[:, prefix:, 0], 2.0))
    runs["weighted", count] = partial(run_blocks, weighted)
    runs["merging", count] = partial(model.merge, walk, Merging(1, 0.2))
    for name, criterion in _scorings(grid).items():
        runs[name, count] = partial(model.pause, walk, Pause(1, 0.5, criterion))
    runs["assembling", count] = lambda: pausing.assemble(some, [(tokens, rows)])
    if isinstance(model.decoder, TokenDecoder):
        decoder = model.decoder
        runs["decoder", count] = lambda: decoder.token_logits(some[:, prefix:])
    elif count == whole.patch_index.shape[1]:
        runs["decoder", count] = lambda: model.decoder(some[:, prefix:], grid)


def ladder(patches: int) -> list[int]:
    """Token counts to time: close together where few are left, and where kernels change."""
    parts = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    counts = {max(1, round(patches * part)) for part in parts}
    # Attention kernels change their tiling at such counts (prefix tokens included).
    edges = {edge + side for edge in (192, 768) for side in (-2, -1)}
    return sorted(counts | {edge for edge in edges if edge < patches})


def between(steps: Ladder, count: int) -> float:
    """The time at a count, on the straight line between its neighbours on the ladder."""
    counts, seconds = zip(*steps, strict=True)
    return float(np.interp(count, counts, seconds))


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
    what = timing.environment(images, settings)
    shape = {key: what[key] for key in what if key not in ("when", "rounds")}
    assert model.config
    shape |= {"backbone": model.config.backbone, "decoder": model.config.decoder}
    shape |= {"classes": len(model.config.classes), **dict(model.config.decoder_options)}
    shape |= {"context": True} if model.context else {}
    name = hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=8).hexdigest()
    path = directory / f"cost-{name}.json"
    try:
        table = CostTable(**json.loads(path.read_text("utf-8")))
        scored = [table.pausing[name] for name in _scorings()]
        more = (table.weighted, table.decoder, table.assembling, table.merging)
        for steps in (table.block, *more, *scored):
            between(steps, 1)
        return table
    except (OSError, ValueError, TypeError, KeyError):  # Not there, broken, or of another version.
        table = measure_cost(model, images, settings, progress)
    with suppress(OSError):  # A cache that cannot be written costs time, not results.
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(table)).encode())
    return table


def cost_tables(
    predictor: Predictor,
    image: UInt8[np.ndarray, "h w 3"],
    sizes: Sequence[int | None],
    settings: SpeedSettings,
    batch: int = 1,
    progress: Progress | None = None,
) -> dict[int | None, CostTable]:
    """The cost tables of images like this one at some sizes; None is as the model was trained."""
    tables: dict[int | None, CostTable] = {}
    network = predictor.network
    if isinstance(predictor.engine, FileEngine):  # Of its shape, with other weights.
        network = PausingSegmenter.from_config(predictor.config).eval()
    for size in dict.fromkeys([None, *sizes]):
        mode = Mode(size=size)
        seen = predictor.network_inputs(image, mode)[:1].repeat(batch, 1, 1, 1)
        table = cached_cost(network, seen, settings, progress=progress)
        windows = predictor.windows((image.shape[0], image.shape[1]), mode)
        # Logits are enlarged to the image, whatever the network's input.
        enlarging = tables[None].upsampling if tables else table.upsampling
        tables[size] = replace(table, windows=windows, upsampling=enlarging)
    return tables


def with_speeds(
    measurements: Sequence[Measurement],
    predictor: Predictor,
    image: UInt8[np.ndarray, "h w 3"],
    speed: Literal["predict", "measure"] = "predict",
    settings: SpeedSettings | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> list[Measurement]:
    """The measurements with the speed of images like this one; without, where it is not fixed.

    Random pausing and the oracle are timed as entropy: what they know costs nothing.
    """
    settings = settings or SpeedSettings()
    modes = [item.mode for item in measurements if timing.has_fixed_cost(item.mode)]
    if speed == "predict":
        sizes = [mode.size for mode in modes]
        tables = cost_tables(predictor, image, sizes, settings, batch, progress)
        speeds = {mode: predict_speed(tables, mode) for mode in modes}
    else:
        alike = {
            m: m if m.criterion in CRITERIA else replace(m, criterion="entropy") for m in modes
        }
        found = timing.time_modes(predictor, image, list(alike.values()), settings, batch, progress)
        known = {item.mode: item for item in found}
        speeds = {mode: replace(known[same], mode=mode) for mode, same in alike.items()}
    return [join(item, speeds[item.mode]) if item.mode in speeds else item for item in measurements]
