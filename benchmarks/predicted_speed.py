"""Predicted against measured speed of random modes, interleaved.

python benchmarks/predicted_speed.py --modes 40 --words "exit by=neighbours"
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch

from paumer import Mode, build_model
from paumer.study.cost import cached_cost
from paumer.study.speed import SpeedSettings, measure_speed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backbone", default="vit_tiny_patch16_384")
parser.add_argument("--modes", type=int, default=40)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--words", default="", help="of all modes, such as exit")
arguments = parser.parse_args()

torch.manual_seed(0)
model = build_model(arguments.backbone, "mask", 19, image_size=arguments.size).eval()


def random_mode(rng):
    """One to four pauses at random blocks with random ratios."""
    blocks = sorted(rng.sample(range(1, model.backbone.depth), rng.randint(1, 4)))
    stages = ",".join(f"{block}:{round(rng.uniform(0.05, 0.9), 3)}" for block in blocks)
    return Mode.parse(f"{stages} {arguments.words}")


images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
settings = SpeedSettings(rounds=arguments.rounds, threads=arguments.threads)
rng = random.Random(arguments.seed)
modes = [random_mode(rng) for _ in range(arguments.modes)]
with tempfile.TemporaryDirectory() as folder:
    table = cached_cost(model, images, settings, Path(folder))
measured = measure_speed(model, images, modes, settings).measurements
errors = []
for item in measured:
    predicted = table.predict(item.mode)
    errors.append(abs(predicted.images_per_second / item.images_per_second - 1))
    print(
        f"{item.mode!s:40} predicted {predicted.images_per_second:6.2f} images/s, "
        f"measured {item.images_per_second:6.2f}, error {100 * errors[-1]:.1f}%"
    )
own = errors[1:]
print(
    f"{len(own)} modes: median error {100 * np.median(own):.1f}%, "
    f"95th percentile {100 * np.percentile(own, 95):.1f}%, largest {100 * max(own):.1f}%"
)
