"""What a training step gets to see, as a function of (seed, step, index in the batch)."""

import hashlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from paumer.data.samples import Dataset, Sample
from paumer.data.transforms import TrainTransform

CropIndex = tuple[int, int]
"""The step, and the index in its batch."""


class Batch(NamedTuple):
    """One process's part of a step."""

    step: int
    names: Sequence[str]
    images: Float[Tensor, "b 3 h w"]
    labels: Int[Tensor, "b h w"]


def mix(*numbers: int) -> int:
    """One number that depends on all of them, the same everywhere."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class Crops(TorchDataset[Batch | str]):
    """Batches by the (step, index) of their crops, or why there is none.

    Each epoch has an order of its own.
    """

    dataset: Dataset
    transform: TrainTransform
    batch: int
    seed: int
    bad_list: Path | None = None
    """Where images that cannot be read are listed; the next one is then taken instead."""

    def __post_init__(self) -> None:
        if not len(self.dataset):
            raise ValueError(f"{self.dataset.name} has no training images")

    def __getitem__(self, keys: list[CropIndex]) -> Batch | str:
        parts = []
        for step, index in keys:
            sample = self._sample(step, index)
            if isinstance(sample, str):
                # Not raised: an error in a worker would arrive with its traceback as the message.
                return sample
            parts.append((sample.name, *self.transform(sample, mix(self.seed, step, index))))
        names, images, labels = zip(*parts, strict=True)
        return Batch(step, names, torch.stack(images), torch.stack(labels))

    def _sample(self, step: int, index: int) -> Sample | str:
        count = len(self.dataset)
        epoch, position = divmod(step * self.batch + index, count)
        order = shuffled(self.seed, epoch, count)
        for attempt in range(count if self.bad_list else 1):
            sample = read(self.dataset, int(order[(position + attempt) % count]), self.bad_list)
            if isinstance(sample, Sample):
                break
        return sample


def read(dataset: Dataset, index: int, bad_list: Path | None) -> Sample | str:
    """An image and its labels, or what is wrong with them; the list names each problem once."""
    try:
        return dataset[index]
    except (ValueError, OSError) as error:
        problem = str(error)
    if bad_list:
        known = bad_list.read_text("utf-8").splitlines() if bad_list.exists() else []
        if problem not in known:
            with bad_list.open("a", encoding="utf-8") as file:
                file.write(f"{problem}\n")
    return problem


@lru_cache(maxsize=4)
def shuffled(seed: int, epoch: int, count: int) -> Int[np.ndarray, " n"]:
    """The order of the images in one epoch."""
    return np.random.Generator(np.random.PCG64(mix(seed, -1, epoch))).permutation(count)


def crop_indices(
    first: int, steps: int, batch: int, rank: int, world: int
) -> Iterator[list[CropIndex]]:
    """What one of ``world`` processes sees of each step from ``first`` on."""
    if batch % world:
        raise ValueError(f"a batch of {batch} cannot be shared by {world} processes equally")
    own = range(rank * batch // world, (rank + 1) * batch // world)
    return ([(step, index) for index in own] for step in range(first, steps))


def make_loader(
    crops: Crops, indices: Iterator[list[CropIndex]], workers: int, pin: bool
) -> DataLoader[Batch | str]:
    """Batches, prepared ahead by worker processes, or why there is none."""
    return DataLoader(
        crops,
        batch_size=None,
        sampler=indices,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_prepare_worker if workers else None,
    )


def _prepare_worker(_: int) -> None:
    torch.set_num_threads(1)
    # Ctrl-C, or a scheduler's signal to all processes, is for the training, which then saves.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
