"""Many configurations over a data set, resumably; and the paper's search, block by block.

Counting accuracy and timing are kept apart: nothing is timed while a sweep runs. What several
configurations have in common is computed once (``PausingSegmenter.forward_many``).
"""

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from paumer.data.samples import Dataset
from paumer.disk import replace_file
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement
from paumer.mode import Mode
from paumer.model.directory import fingerprint
from paumer.pause_config import PauseConfig
from paumer.progress import Progress
from paumer.study.accuracy import (
    Tally,
    batches,
    check_study,
    count_batch,
    known_value,
    read_ahead,
)
from paumer.study.tradeoff import Budget, choose


@dataclass(frozen=True)
class Sweep:
    """Modes over a data set, and the folder that keeps what was counted.

    The counts of each batch are one file, which appears whole or not at all. So a sweep can be
    killed anywhere and continues, and any number of processes can share the folder.
    """

    predictor: Predictor
    dataset: Dataset
    modes: Sequence[Mode]
    directory: Path
    inference: Inference = field(default_factory=Inference)
    indices: Sequence[int] | None = None

    def run(
        self, shard: tuple[int, int] = (0, 1), progress: Progress | None = None
    ) -> list[Tally] | None:
        """Count what is missing; what each mode gets right.

        ``shard`` is this process's number and how many there are: each counts its own batches.
        The first one waits for the others and gives the result, the others give None.
        """
        task = (self.predictor, self.dataset)
        check_study(*task, self.modes, self.inference)
        self._claim()
        groups = batches(*task, self.modes, self.inference, self._chosen)
        rank, world = shard
        mine = range(rank, len(groups), world)
        missing = [number for number in mine if not self._file(number).exists()]
        total, done = len(mine), len(mine) - len(missing)
        ahead = read_ahead(self.dataset, [groups[number] for number in missing])
        for number, samples in zip(missing, ahead, strict=True):
            if progress:
                progress(done, total)
            done += 1
            if not self._file(number).exists():  # Another process may have been here.
                tallies = count_batch(*task, groups[number], samples, self.modes, self.inference)
                self._save(number, np.stack([tally.images for tally in tallies]))
        if progress:
            progress(done, total)
        if rank:
            return None
        while not all(self._file(number).exists() for number in range(len(groups))):
            time.sleep(0.2)
        indices = np.array([index for group in groups for index in group], np.int64)
        counts = np.concatenate([self._load(number) for number in range(len(groups))], 1)
        return [Tally(indices, part) for part in counts]

    def _file(self, number: int) -> Path:
        return self.directory / "counts" / f"batch-{number:05}.npz"

    def _claim(self) -> None:
        """Make the folder this sweep's own, or raise if it belongs to another one."""
        path, task = self.directory / "counts" / "task", self.fingerprint()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, task.encode())
        elif path.read_text("utf-8") != task:
            raise ValueError(
                f'"{self.directory}" belongs to another sweep (other weights, data or modes): '
                f"name another directory"
            )

    def fingerprint(self) -> str:
        """A text that changes with whatever changes the counts, so that old ones never mix in."""
        parts = [
            fingerprint(self.predictor.network.state_dict()),
            json.dumps(self.predictor.config.to_json(), sort_keys=True),
            f"{self.dataset.name} {self.dataset.split} {len(self.dataset)}",
            *(self._identity(index) for index in self._chosen),
            repr(self.inference),
            *map(str, self.modes),
        ]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def _chosen(self) -> Sequence[int]:
        return range(len(self.dataset)) if self.indices is None else self.indices

    def _identity(self, place: int) -> str:
        """What tells an image from others of its name: its files, where it has any."""
        files = self.dataset.files(place) or ()
        seen = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        return f"{place} {seen}"

    def _save(self, number: int, counts: np.ndarray) -> None:
        content = io.BytesIO()
        np.savez_compressed(content, counts=counts.astype(np.int32))
        replace_file(self._file(number), content.getvalue())

    def _load(self, number: int) -> np.ndarray:
        path = self._file(number)
        try:
            with np.load(path, allow_pickle=False) as file:
                counts: np.ndarray = file["counts"].astype(np.int64)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(
                f'cannot read "{path}" ({error}): remove it, and the sweep counts it again'
            ) from error
        return counts


def save_tallies(path: Path, modes: Sequence[Mode], tallies: Sequence[Tally]) -> None:
    """Keep what was counted image by image: enough for any figure, interval or comparison."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        modes=np.array([str(mode) for mode in modes]),
        indices=tallies[0].indices.astype(np.int32),
        counts=np.stack([tally.images for tally in tallies]).astype(np.int32),
    )
    replace_file(path, content.getvalue())


def load_tallies(path: Path) -> dict[str, Tally]:
    """What ``save_tallies`` kept, by the mode's text (in files of 0.1 its stages alone)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            old = "pauses" in file
            modes = file["pauses" if old else "modes"].tolist()
            indices = file["places" if old else "indices"].astype(np.int64)
            counts = file["counts"].astype(np.int64)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f'cannot read "{path}": {error}') from error
    return {mode: Tally(indices, own) for mode, own in zip(modes, counts, strict=True)}


def describe(
    predictor: Predictor,
    modes: Sequence[Mode],
    tallies: Sequence[Tally],
    size: tuple[int, int],
    data: str | None = None,
    inference: Inference | None = None,
) -> list[Measurement]:
    """What was counted as measurements, with MACs for images of ``size`` (height, width)."""
    whole = predictor.macs(size, inference=inference)
    found = []
    for mode, tally in zip(modes, tallies, strict=True):
        low, high = tally.interval()
        item = Measurement(
            mode=mode,
            data=data,
            miou=known_value(tally.miou),
            miou_low=known_value(low),
            miou_high=known_value(high),
            pixel_accuracy=tally.pixel_accuracy,
            mean_accuracy=known_value(tally.mean_accuracy),
            images=len(tally.images),
        )
        with suppress(ValueError):  # By threshold the cost depends on the image.
            macs = predictor.macs(size, mode, inference)
            item = replace(item, gmacs=macs / 1e9, mac_ratio=whole / macs)
        found.append(item)
    return found


def search(
    measure: Callable[[Sequence[Mode]], Sequence[Measurement]],
    mode: Callable[[PauseConfig], Mode],
    budget: Budget,
    depth: int,
    shares: Sequence[float],
    start: Sequence[Measurement],
    most: int = 4,
) -> list[Measurement]:
    """The paper's second procedure (section 4): one block after the other.

    All single pauses are measured and the best for the budget is kept; then a second pause at a
    later block is added to it in all ways, and so on, until another one no longer helps. ``mode``
    makes a mode of stages, ``start`` was measured without pausing. All that was measured.
    """
    measured, best = list(start), start[-1]
    for _ in range(most):
        pause = best.mode.pause
        last = pause.blocks[-1] if pause else 0
        candidates = [
            mode(PauseConfig((*pause.stages, (block, share))))
            for block in range(last + 1, depth)
            for share in shares
        ]
        if not candidates:
            break
        measured += measure(candidates)
        better, _ = choose(measured, budget)
        if better.mode == best.mode or len(better.mode.pause.stages) < len(pause.stages):
            break
        best = better
    return measured
