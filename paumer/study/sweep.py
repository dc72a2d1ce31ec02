"""Many configurations over a data set, resumably; and the paper's search, block by block.

Counting accuracy and timing are kept apart: nothing is timed while a sweep runs. What several
configurations have in common is computed once (``PausingSegmenter.forward_many``).
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from paumer.data.datasets import Dataset
from paumer.disk import replace_file
from paumer.pause_config import PauseConfig
from paumer.predict import Inference, Predictor
from paumer.study.accuracy import Confusion, Progress, Tally, evaluate
from paumer.study.tradeoff import Measurement


def sweep(
    predictor: Predictor,
    dataset: Dataset,
    ways: Sequence[Inference],
    directory: Path,
    criterion: str = "entropy",
    chunk: int = 8,
    progress: Progress | None = None,
    shard: tuple[int, int] = (0, 1),
) -> list[Tally]:
    """What each way gets right over a data set, kept in ``directory`` as it goes.

    After every ``chunk`` of pictures the counts so far are put on the disk; a sweep that was
    stopped goes on after the last chunk. ``shard`` is this process's number and how many there
    are: each counts its own pictures.
    """
    rank, world = shard
    places = range(rank, len(dataset), world)
    path = directory / f"counts-{rank}-of-{world}.npz"
    task = fingerprint(predictor, dataset, ways, criterion, chunk, shard)
    done, totals, parts = _load(path, task, len(ways), len(dataset.class_set))
    while done < len(places):
        some = places[done : done + chunk]
        tallies = evaluate(predictor, dataset, ways, some, criterion=criterion, seed=done)
        totals = totals + np.stack([tally.confusion.counts for tally in tallies])
        parts = np.concatenate([parts, np.stack([tally.pictures for tally in tallies])], 1)
        done += len(some)
        _save(path, task, done, totals, parts)
        if progress:
            progress(done, len(places))
    return [Tally(Confusion(total), part) for total, part in zip(totals, parts, strict=True)]


def fingerprint(
    predictor: Predictor,
    dataset: Dataset,
    ways: Sequence[Inference],
    criterion: str,
    chunk: int,
    shard: tuple[int, int],
) -> str:
    """A text that changes with whatever changes the counts, so that old ones are not mixed in."""
    weights = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(predictor.network.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.cpu().numpy().tobytes())
    said = [
        weights.hexdigest(),
        json.dumps(predictor.config.to_json(), sort_keys=True),
        f"{dataset.name} {dataset.split} {len(dataset)}",
        criterion,
        f"{chunk} {shard}",
        *(f"{w.pause} {w.early_exit} {w.window} {w.stride} {w.short_side} {w.batch}" for w in ways),
    ]
    return hashlib.blake2b("\n".join(said).encode(), digest_size=16).hexdigest()


def _save(path: Path, task: str, done: int, totals: np.ndarray, parts: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, task=np.array(task), done=np.array(done), totals=totals, parts=parts)
    replace_file(path, content.getvalue())


def _load(path: Path, task: str, ways: int, classes: int) -> tuple[int, np.ndarray, np.ndarray]:
    fresh = (
        0,
        np.zeros((ways, classes, classes), np.int64),
        np.zeros((ways, 0, 3, classes), np.int64),
    )
    if not path.exists():
        return fresh
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["task"]) != task:
                raise ValueError(
                    f'"{path}" belongs to another sweep (other weights, data or configurations): '
                    f"name another directory"
                )
            return int(file["done"]), file["totals"], file["parts"]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f'cannot read "{path}": {error}') from error


def search(
    measure: Callable[[Sequence[PauseConfig]], Sequence[Measurement]],
    pick: Callable[[Sequence[Measurement]], Measurement],
    depth: int,
    shares: Sequence[float],
    most: int = 4,
) -> list[Measurement]:
    """The paper's second procedure (section 4): one block after the other.

    All single pauses are measured and the best is kept; then a second pause at a later block is
    added to it in all ways, and so on, until another one no longer helps. All that was measured.
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
        better = pick(measured)
        if better.pause == best.pause or len(better.pause.stages) < len(best.pause.stages):
            break
        best = better
    return measured
