"""What a training step costs: paumer's against the plain Segmenter's, interleaved.

python benchmarks/step_cost.py --steps 60
"""

import argparse
from collections.abc import Callable
from itertools import count
from typing import Literal

import numpy as np
import torch
from lightning_fabric import Fabric

from paumer import build_model
from paumer.data.datasets import open_dataset
from paumer.study.speed import time_interleaved
from paumer.training.feed import Batch
from paumer.training.loop import Training
from paumer.training.options import TrainOptions
from paumer.training.start import make_loss


def make_step(
    criterion: Literal["none", "entropy"], backbone: str, batch: int, crop: int
) -> Callable[[], None]:
    """A function that does one whole step after the other, as training does."""
    images = torch.randn(batch, 3, crop, crop)
    labels = torch.randint(0, 19, (batch, crop, crop))
    network = build_model(backbone, "mask", 19, image_size=crop, decoder_options={"dropout": 0.1})
    options = TrainOptions(criterion=criterion)
    data = open_dataset("scenes:1", "train")  # Class weights, of which there are none, need it.
    loss = make_loss(options, network, data).train()
    training = Training(options, Fabric(accelerator="cpu", devices=1), loss)
    numbers = count()

    def step() -> None:
        training.run([Batch(next(numbers), (), images, labels)], after=lambda metrics: None)

    return step


def main() -> None:
    """Time both kinds of step in turns and print their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="vit_tiny_patch16_384")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    size = (arguments.backbone, arguments.batch, arguments.crop)
    steps = [make_step("none", *size), make_step("entropy", *size)]
    seconds = time_interleaved(steps, torch.device("cpu"), arguments.steps, warmup=2)
    plain, paused = seconds.sum(0)
    medians = 1000 * np.median(seconds, 0)
    pairs = np.median(seconds[:, 1] / seconds[:, 0])
    print(
        f"{arguments.steps} interleaved steps, batch {arguments.batch}, "
        f"{arguments.crop}x{arguments.crop}, {arguments.threads} thread(s): "
        f"plain {medians[0]:.0f} ms, paumer {medians[1]:.0f} ms; sums {paused:.1f} and "
        f"{plain:.1f} s: {paused / plain:.3f} of the plain step (median of pairs {pairs:.3f})"
    )


if __name__ == "__main__":
    main()
