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
from paumer.measurement import speed_of
from paumer.study.cost import cached_cost, predict_speed
from paumer.study.speed import SpeedSettings, measure_speed


def random_mode(rng: random.Random, depth: int, words: str) -> Mode:
    """One to four pauses at random blocks with random ratios."""
    blocks = sorted(rng.sample(range(1, depth), rng.randint(1, 4)))
    stages = ",".join(f"{block}:{round(rng.uniform(0.05, 0.9), 3)}" for block in blocks)
    return Mode.parse(f"{stages} {words}")


def main() -> None:
    """Predict, measure, and print the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    settings = SpeedSettings(rounds=arguments.rounds, threads=arguments.threads)
    rng, depth = random.Random(arguments.seed), model.backbone.depth
    modes = [random_mode(rng, depth, arguments.words) for _ in range(arguments.modes)]
    with tempfile.TemporaryDirectory() as folder:
        table = cached_cost(model, images, settings, Path(folder))
    errors = []
    for item in measure_speed(model, images, modes, settings).measurements:
        predicted, measured = speed_of(predict_speed({None: table}, item.mode)), speed_of(item)
        error = 100 * abs(predicted / measured - 1)
        print(
            f"{item.mode!s:40} predicted {predicted:6.2f} images/s, "
            f"measured {measured:6.2f}, error {error:.1f}%"
        )
        if item.mode.pause:
            errors.append(error)
    print(
        f"{len(errors)} modes: median error {np.median(errors):.1f}%, "
        f"95th percentile {np.percentile(errors, 95):.1f}%, largest {max(errors):.1f}%"
    )


if __name__ == "__main__":
    main()
