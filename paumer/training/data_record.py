"""What a run learns from, by name, so that a resumed run notices when it is something else."""

import hashlib
import json
import os
from itertools import zip_longest
from pathlib import Path

from paumer.data.samples import Dataset
from paumer.disk import replace_file

DATA_FILE = "data.json"
Record = dict[str, list[str]]


def record_data(directory: Path, training: Dataset, validation: Dataset) -> None:
    """Note in a run directory which classes and images there are."""
    content = json.dumps(_describe(training, validation), indent=0) + "\n"
    replace_file(directory / DATA_FILE, content.encode())


def check_same_data(directory: Path, training: Dataset, validation: Dataset) -> None:
    """Raise with what changed since it was noted; a run that noted nothing passes.

    Names count, not contents, and where a data set lies does not.
    """
    path = directory / DATA_FILE
    if not path.exists():
        return
    before, now = _read(path), _describe(training, validation)
    changes = _changed_classes(before["classes"], now["classes"])
    for split in ("train", "val"):
        changes += _changed_images(before[split], now[split], split)
    if not changes and before["masks"] != now["masks"]:
        changes = ["the masks are other files"]
    if changes:
        raise ValueError(
            f'the data of "{directory}" changed since the run began: {"; ".join(changes)}. Bring '
            f"back what it was, begin a new run from this one's model "
            f'(--init {directory / "model"}), or remove "{path}" to resume with the data as it is'
        )


def _describe(training: Dataset, validation: Dataset) -> Record:
    """The classes, the images of both splits, and a fingerprint of the names of the masks."""
    files = [[data.files(n) for n in range(len(data))] for data in (training, validation)]
    flat = [file.absolute() for pairs in files for pair in pairs for file in pair or ()]
    # Names from the common folder on stay what they are when the data set moves.
    alike = len({file.drive for file in flat}) == 1
    root = Path(os.path.commonpath([file.parent for file in flat]) if alike else "").as_posix()
    names = iter([file.as_posix().removeprefix(root).strip("/") for file in flat])
    record: Record = {"classes": list(training.class_set.names)}
    digest = hashlib.blake2b(digest_size=16)
    for split, pairs in zip(("train", "val"), files, strict=True):
        record[split] = []
        for number, pair in enumerate(pairs):
            record[split].append(next(names) if pair else f"scene {number}")
            digest.update(f"{next(names) if pair else ''}\n".encode(errors="surrogateescape"))
    return {**record, "masks": [digest.hexdigest()]}


def _read(path: Path) -> Record:
    try:
        values = json.loads(path.read_bytes())
        lists = [values[name] for name in ("classes", "train", "val", "masks")]
        if not all(isinstance(name, str) for names in lists for name in names):
            raise TypeError("names must be texts")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f'cannot read "{path}" ({error}): bring it back, or remove it to resume with the data '
            f"as it is"
        ) from error
    return dict(values)


def _changed_classes(before: list[str], now: list[str]) -> list[str]:
    pairs = list(enumerate(zip_longest(before, now, fillvalue="nothing")))
    changes = [f"class {n} was {old} and is {new}" for n, (old, new) in pairs if old != new]
    return changes[:3] + ([f"{len(changes) - 3} more classes differ"] if changes[3:] else [])


def _changed_images(before: list[str], now: list[str], split: str) -> list[str]:
    changes = []
    for here, there, what in ((now, before, "added"), (before, now, "removed")):
        known = set(there)
        if other := [name for name in here if name not in known]:
            count = "1 image was" if len(other) == 1 else f"{len(other)} images were"
            changes.append(f"{count} {what} in {split}, such as {other[0]}")
    if not changes and before != now:
        changes = [f"the images of {split} come in another order"]
    return changes
