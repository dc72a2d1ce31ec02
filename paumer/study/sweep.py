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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paumer.criteria import CRITERIA, name_of
from paumer.data.datasets import Dataset
from paumer.disk import replace_file
from paumer.model.weights import fingerprint
from paumer.pause_config import PauseConfig
from paumer.predict import Inference, Predictor
from paumer.study.accuracy import (
    Progress,
    Tally,
    batches,
    check_classes,
    check_criterion,
    count_batch,
    known_value,
    read_ahead,
)
from paumer.study.cost import CostTable
from paumer.study.tradeoff import Budget, Measurement, choose


@dataclass(frozen=True)
class Sweep:
    """Ways of inference over a data set, and the folder that keeps what was counted.

    The counts of each batch are one file, which appears whole or not at all. So a sweep can be
    killed anywhere and goes on, and any number of processes can share the folder.
    """

    predictor: Predictor
    dataset: Dataset
    ways: Sequence[Inference]
    directory: Path
    criterion: str | None = None
    """Who pauses in all ways, by name; without it each way says so itself."""
    indices: Sequence[int] | None = None

    def run(
        self, shard: tuple[int, int] = (0, 1), progress: Progress | None = None
    ) -> list[Tally] | None:
        """Count what is missing; what each way gets right.

        ``shard`` is this process's number and how many there are: each counts its own batches.
        The first one waits for the others and gives the result, the others give None.
        """
        check_classes(self.predictor, self.dataset)
        if self.criterion is not None:
            check_criterion(self.criterion, self.predictor, self.ways[0])
        self._claim()
        groups = batches(self.predictor, self.dataset, self.ways[0], self._places, self.criterion)
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
                tallies = count_batch(
                    self.predictor, self.dataset, groups[number], samples, self.ways, self.criterion
                )
                self._save(number, np.stack([tally.pictures for tally in tallies]))
        if progress:
            progress(done, total)
        if rank:
            return None
        while not all(self._file(number).exists() for number in range(len(groups))):
            time.sleep(0.2)
        places = np.array([place for group in groups for place in group], np.int64)
        counts = np.concatenate([self._load(number) for number in range(len(groups))], 1)
        return [Tally(places, part) for part in counts]

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
                f'"{self.directory}" belongs to another sweep (other weights, data, criterion or '
                f"configurations): name another directory"
            )

    def fingerprint(self) -> str:
        """A text that changes with whatever changes the counts, so that old ones never mix in."""
        who = [name_of(way.criterion) or str(way.criterion) for way in self.ways]
        said = [
            fingerprint(self.predictor.network.state_dict()),
            json.dumps(self.predictor.config.to_json(), sort_keys=True),
            f"{self.dataset.name} {self.dataset.split} {len(self.dataset)}",
            *(self._identity(place) for place in self._places),
            self.criterion or ",".join(dict.fromkeys(who)),
            *(
                f"{way.pause} {way.early_exit} {way.window} {way.stride} {way.short_side} "
                f"{way.batch} {way.scales} {way.flip} {way.protect}"
                for way in self.ways
            ),
        ]
        return hashlib.blake2b("\n".join(said).encode(), digest_size=16).hexdigest()

    @property
    def _places(self) -> Sequence[int]:
        return range(len(self.dataset)) if self.indices is None else self.indices

    def _identity(self, place: int) -> str:
        """What tells a picture from others of its name: its files, where it has any."""
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


def save_tallies(path: Path, ways: Sequence[Inference], tallies: Sequence[Tally]) -> None:
    """Keep what was counted picture by picture: enough for any figure, interval or comparison."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        pauses=np.array([str(way.pause) for way in ways]),
        places=tallies[0].places.astype(np.int32),
        counts=np.stack([tally.pictures for tally in tallies]).astype(np.int32),
    )
    replace_file(path, content.getvalue())


def load_tallies(path: Path) -> dict[str, Tally]:
    """What ``save_tallies`` kept, by configuration."""
    try:
        with np.load(path, allow_pickle=False) as file:
            places, counts = file["places"].astype(np.int64), file["counts"].astype(np.int64)
            pauses = file["pauses"].tolist()
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f'cannot read "{path}": {error}') from error
    return {pause: Tally(places, own) for pause, own in zip(pauses, counts, strict=True)}


def describe(
    predictor: Predictor,
    ways: Sequence[Inference],
    tallies: Sequence[Tally],
    size: tuple[int, int],
    criterion: str | None = None,
    table: CostTable | None = None,
    data: str | None = None,
) -> list[Measurement]:
    """What was counted as measurements, with multiply-adds at a network input of ``size``.

    With a cost table also the predicted speed.
    """
    network = predictor.network
    whole = network.multiply_adds(size)
    found = []
    for way, tally in zip(ways, tallies, strict=True):
        low, high = tally.interval()
        who = criterion or name_of(way.criterion) or "another"
        known: dict[str, Any] = {
            "criterion": "entropy" if who in CRITERIA and not way.pause else who,
            "data": data,
            "miou": known_value(tally.miou),
            "miou_low": known_value(low),
            "miou_high": known_value(high),
            "pixel_accuracy": tally.pixel_accuracy,
            "mean_accuracy": known_value(tally.mean_accuracy),
            "pictures": len(tally.pictures),
        }
        early_exit = way.early_exit and bool(way.pause)
        with suppress(ValueError):  # By threshold the cost depends on the picture.
            macs = network.multiply_adds(size, way.pause, early_exit)
            known |= {"gmacs": macs / 1e9, "mac_ratio": whole / macs}
            if table:
                found.append(table.predict(way.pause, early_exit, **known))
                continue
        found.append(Measurement(pause=way.pause, early_exit=early_exit, **known))
    return found


def search(
    measure: Callable[[Sequence[PauseConfig]], Sequence[Measurement]],
    budget: Budget,
    depth: int,
    shares: Sequence[float],
    most: int = 4,
) -> list[Measurement]:
    """The paper's second procedure (section 4): one block after the other.

    All single pauses are measured and the best for the budget is kept; then a second pause at a
    later block is added to it in all ways, and so on, until another one no longer helps. All that
    was measured.
    """
    best, *_ = measured = list(measure([PauseConfig()]))
    for _ in range(most):
        last = best.pause.blocks[-1] if best.pause else 0
        candidates = [
            PauseConfig((*best.pause.stages, (block, share)))
            for block in range(last + 1, depth)
            for share in shares
        ]
        if not candidates:
            break
        measured += measure(candidates)
        better, _ = choose(measured, budget)
        if better.pause == best.pause or len(better.pause.stages) < len(best.pause.stages):
            break
        best = better
    return measured
