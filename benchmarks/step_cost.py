"""What a training step costs: paumer's against the plain Segmenter's, interleaved.

python benchmarks/step_cost.py --steps 60
"""

import argparse
import time

import numpy as np
import torch
from lightning_fabric import Fabric

from paumer import build_model
from paumer.training.feed import Batch
from paumer.training.loop import Training
from paumer.training.options import TrainOptions
from paumer.training.start import make_loss

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backbone", default="vit_tiny_patch16_384")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--crop", type=int, default=256)
parser.add_argument("--threads", type=int, default=1)
arguments = parser.parse_args()

torch.set_num_threads(arguments.threads)
torch.manual_seed(0)
images = torch.randn(arguments.batch, 3, arguments.crop, arguments.crop)
labels = torch.randint(0, 19, (arguments.batch, arguments.crop, arguments.crop))


def make_step(criterion):
    """A function that does one whole step of that number, as training does."""
    network = build_model(
        arguments.backbone, "mask", 19, image_size=arguments.crop, decoder_options={"dropout": 0.1}
    )
    options = TrainOptions(criterion=criterion)
    loss = make_loss(options, network, None).train()  # Only class weights would need the data.
    training = Training(options, Fabric(accelerator="cpu", devices=1), loss)

    def step(number):
        training.run([Batch(number, (), images, labels)], after=lambda metrics: None)

    return step


plain, paused = make_step("none"), make_step("entropy")
seconds = np.zeros((arguments.steps, 2))
for number in range(-2, arguments.steps):
    for column, step in enumerate((plain, paused)):
        begin = time.perf_counter()
        step(number + 2)
        if number >= 0:
            seconds[number, column] = time.perf_counter() - begin
ratios = seconds[:, 1] / seconds[:, 0]
print(
    f"{arguments.steps} interleaved steps, batch {arguments.batch}, {arguments.crop}x"
    f"{arguments.crop}, {arguments.threads} thread(s): plain {1000 * np.median(seconds[:, 0]):.0f}"
    f" ms, paumer {1000 * np.median(seconds[:, 1]):.0f} ms; sums {seconds[:, 1].sum():.1f} and "
    f"{seconds[:, 0].sum():.1f} s: {seconds[:, 1].sum() / seconds[:, 0].sum():.3f} of the plain "
    f"step (median of pairs {np.median(ratios):.3f})"
)
