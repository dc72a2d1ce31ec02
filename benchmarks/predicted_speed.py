"""Predicted against measured speed of random configurations, interleaved.

python benchmarks/predicted_speed.py --configurations 40
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch

from paumer import PauseConfig, build_model
from paumer.study.cost import cached_cost
from paumer.study.speed import SpeedSettings, measure_speed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backbone", default="vit_tiny_patch16_384")
parser.add_argument("--configurations", type=int, default=40)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--early-exit", action="store_true")
arguments = parser.parse_args()


torch.manual_seed(0)
model = build_model(arguments.backbone, "mask", 19, image_size=arguments.size).eval()


def random_config(dice):
    """One to four pauses at random blocks with random shares."""
    blocks = sorted(dice.sample(range(1, model.backbone.depth), dice.randint(1, 4)))
    return PauseConfig(tuple((block, round(dice.uniform(0.05, 0.9), 3)) for block in blocks))


images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
settings = SpeedSettings(
    rounds=arguments.rounds, threads=arguments.threads, early_exit=arguments.early_exit
)
dice = random.Random(arguments.seed)
configs = [random_config(dice) for _ in range(arguments.configurations)]
with tempfile.TemporaryDirectory() as folder:
    table = cached_cost(model, images, settings, Path(folder))
measured = measure_speed(model, images, configs, settings).measurements
errors = []
for item in measured:
    predicted = table.predict(item.pause, arguments.early_exit)
    errors.append(abs(predicted.images_per_second / item.images_per_second - 1))
    print(
        f"{item.pause!s:40} predicted {predicted.images_per_second:6.2f} images/s, "
        f"measured {item.images_per_second:6.2f}, error {100 * errors[-1]:.1f}%"
    )
own = errors[1:]
print(
    f"{len(own)} configurations: median error {100 * np.median(own):.1f}%, "
    f"95th percentile {100 * np.percentile(own, 95):.1f}%, largest {100 * max(own):.1f}%"
)
