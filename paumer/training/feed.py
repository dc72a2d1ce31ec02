"""What a training step gets to see, as a function of (seed, step, place in the batch)."""

import hashlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from paumer.data.samples import Dataset
from paumer.data.transforms import TrainTransform

Place = tuple[int, int]


@dataclass(frozen=True)
class Crop:
    """A training crop, or the reason why there is none."""

    name: str
    image: Float[Tensor, "3 h w"] | None = None
    labels: Int[Tensor, "h w"] | None = None
    problem: str = ""


@dataclass
class Batch:
    """One process's part of a step: crops in the order of their places."""

    step: int
    names: tuple[str, ...]
    images: Float[Tensor, "b 3 h w"]
    labels: Int[Tensor, "b h w"]

    def pin_memory(self) -> "Batch":
        """The batch in memory that a GPU reads fast."""
        return Batch(self.step, self.names, self.images.pin_memory(), self.labels.pin_memory())


def mix(*numbers: int) -> int:
    """One number that depends on all of them, the same everywhere."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


class Crops(TorchDataset[tuple[int, Crop]]):
    """Crops by (step, place). Each pass over the images has an order of its own."""

    def __init__(
        self,
        dataset: Dataset,
        transform: TrainTransform,
        batch: int,
        seed: int,
        bad_list: Path | None = None,
    ) -> None:
        if not len(dataset):
            raise ValueError(f"{dataset.name} has no training images")
        self.dataset = dataset
        self.transform = transform
        self.batch = batch
        self.seed = seed
        self.bad_list = bad_list

    def __getitem__(self, where: Place) -> tuple[int, Crop]:
        step, place = where
        count = len(self.dataset)
        epoch, position = divmod(step * self.batch + place, count)
        problem = name = ""
        for attempt in range(count if self.bad_list else 1):
            index = int(shuffled(self.seed, epoch, count)[(position + attempt) % count])
            try:
                sample = self.dataset[index]
            except (ValueError, OSError) as error:
                problem, name = str(error), f"image {index}"
                if self.bad_list:
                    note_bad(self.bad_list, str(error))
                continue
            image, labels = self.transform(sample, mix(self.seed, step, place))
            return step, Crop(sample.name, image, labels)
        return step, Crop(name, problem=problem)


def note_bad(path: Path, message: str) -> None:
    """Add a line to the list of bad images, once."""
    known = path.read_text("utf-8").splitlines() if path.exists() else []
    if message not in known:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


@lru_cache(maxsize=4)
def shuffled(seed: int, epoch: int, count: int) -> Int[np.ndarray, " n"]:
    """The order of one pass over the images."""
    return np.random.Generator(np.random.PCG64(mix(seed, -1, epoch))).permutation(count)


class StepBatches(Sampler[list[Place]]):
    """The places of one process, step by step from ``start`` to ``steps``."""

    def __init__(self, start: int, steps: int, batch: int, rank: int = 0, world: int = 1) -> None:
        if batch % world:
            raise ValueError(f"a batch of {batch} cannot be shared by {world} processes equally")
        self.start, self.steps = start, steps
        share = batch // world
        self.indices = range(rank * share, (rank + 1) * share)

    def __len__(self) -> int:
        return max(0, self.steps - self.start)

    def __iter__(self) -> Iterator[list[Place]]:
        for step in range(self.start, self.steps):
            yield [(step, place) for place in self.indices]


def make_loader(crops: Crops, indices: StepBatches, workers: int, pin: bool) -> DataLoader[Batch]:
    """Batches, prepared ahead by worker processes."""
    return DataLoader(
        crops,  # type: ignore[arg-type]
        batch_sampler=indices,
        collate_fn=join,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_prepare_worker if workers else None,
    )


def join(parts: Sequence[tuple[int, Crop]]) -> Batch:
    """The crops of one step as a batch; an image that could not be read ends the training."""
    crops = [crop for _, crop in parts]
    images = [crop.image for crop in crops if crop.image is not None]
    labels = [crop.labels for crop in crops if crop.labels is not None]
    problems = [crop.problem for crop in crops if crop.problem]
    if problems:
        return Batch(
            parts[0][0], tuple(problems), torch.empty(0, 3, 1, 1), torch.empty(0, 1, 1).long()
        )
    names = tuple(crop.name for crop in crops)
    return Batch(parts[0][0], names, torch.stack(images), torch.stack(labels))


def _prepare_worker(_: int) -> None:
    torch.set_num_threads(1)
    # Ctrl-C, or a scheduler's signal to all processes, is for the training, which then saves.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
