"""Many modes over a data set, resumably.

Counting accuracy and timing are kept apart: nothing is timed while a sweep runs. What several
modes have in common is computed once (``PausingSegmenter.forward_many``).
"""

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from paumer.data.samples import Dataset
from paumer.disk import remove_leftovers, replace_file
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement
from paumer.mode import Mode
from paumer.progress import Progress
from paumer.study.accuracy import Counts, Tally, batches, count
from paumer.study.speed import has_fixed_cost


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
        task = (self.predictor, self.dataset, self.modes, self.inference)
        groups = batches(*task, self.indices)
        self._claim()
        rank, world = shard
        mine = range(rank, len(groups), world)
        missing = [number for number in mine if not self._file(number).exists()]
        before = len(mine) - len(missing)
        report = progress or (lambda *_: None)
        report(before, len(mine))
        counted = count(*task, [groups[number] for number in missing])
        for done, (number, tallies) in enumerate(zip(missing, counted, strict=True), before + 1):
            save_tallies(self._file(number), self.modes, tallies)
            report(done, len(mine))
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
        remove_leftovers(self.directory)

    def fingerprint(self) -> str:
        """A text that changes with whatever changes the counts, so that old ones never mix in."""
        chosen = range(len(self.dataset)) if self.indices is None else self.indices
        parts = [
            self.predictor.fingerprint(),
            json.dumps(self.predictor.config.to_json(), sort_keys=True),
            f"{self.dataset.name} {self.dataset.split} {len(self.dataset)}",
            *(f"{index} {self._files(index)}" for index in chosen),
            repr(self.inference),
            *map(str, self.modes),
        ]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def _files(self, index: int) -> list[tuple[str, int, int]]:
        """What tells an image from others of its name: its files, where it has any."""
        files = self.dataset.files(index) or ()
        return [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]

    def _load(self, number: int) -> Counts:
        path = self._file(number)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                counts: Counts = arrays["counts"].astype(np.int64)
                return counts
        except UNREADABLE as error:
            raise ValueError(
                f'cannot read "{path}" ({error}): remove it, and the sweep counts it again'
            ) from error


UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)
"""What reading a broken file of arrays raises."""


def save_tallies(path: Path, modes: Sequence[Mode], tallies: Sequence[Tally]) -> None:
    """Keep what was counted image by image: enough for any figure, interval or comparison."""
    content = io.BytesIO()
    texts, indices = np.array([str(mode) for mode in modes]), tallies[0].indices.astype(np.int32)
    counts = np.stack([tally.images for tally in tallies]).astype(np.int32)
    np.savez_compressed(content, modes=texts, indices=indices, counts=counts)
    replace_file(path, content.getvalue())


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
        item = Measurement(mode=mode, data=data, **tally.summary())
        if has_fixed_cost(mode):
            macs = predictor.macs(size, mode, inference)
            item = replace(item, gmacs=macs / 1e9, mac_ratio=whole / macs)
        found.append(item)
    return found
