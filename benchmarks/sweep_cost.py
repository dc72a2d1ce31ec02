"""What a sweep costs against evaluating its modes one by one, interleaved.

    python benchmarks/sweep_cost.py --grid paper
    python benchmarks/sweep_cost.py --grid one
    python benchmarks/sweep_cost.py --grid two    (a random third of the pairs of blocks)

Times are of the processor, one thread, so that other work on the machine counts little.
"""

import argparse
import random
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from paumer import Inference, Mode, PausingSegmenter, Predictor, build_model
from paumer.classes import ClassSet, distinct_colours
from paumer.data.samples import Dataset, Sample
from paumer.study.accuracy import evaluate
from paumer.study.grids import grid

CLASSES = 19


class Noise(Dataset):
    """A data set of noise, without files."""

    name, split = "noise", "val"
    class_set = ClassSet(tuple(map(str, range(CLASSES))), distinct_colours(CLASSES))

    def __init__(self, count: int, side: int) -> None:
        self.size = (side, side)
        self.samples = [self._make(number) for number in range(count)]

    def _make(self, number: int) -> Sample:
        noise = np.random.default_rng(number)
        image = noise.integers(0, 256, (*self.size, 3), np.uint8)
        return Sample(str(number), image, noise.integers(0, CLASSES, self.size).astype(np.uint8))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def make_modes(name: str, depth: int) -> list[Mode]:
    """The modes of a grid; of pairs of blocks a random third."""
    modes = grid([name], depth, {})
    if name != "two":
        return modes
    pairs = sorted({mode.pause.blocks for mode in modes if mode.pause})
    chosen = set(random.Random(0).sample(pairs, len(pairs) // 3))
    return [mode for mode in modes if mode.pause.blocks in chosen]


def mac_ratio(network: PausingSegmenter, size: tuple[int, int], modes: Sequence[Mode]) -> float:
    """MACs of all modes together over those of one by one."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        for _ in network.forward_many(torch.randn(1, 3, *size), modes):
            pass
    together: int = counter.get_total_flops() // 2
    return together / sum(network.macs(size, mode) for mode in modes)


def main() -> None:
    """Evaluate image by image, together and one by one, and print both times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grid", choices=["paper", "one", "two"], default="paper")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    network = build_model("vit_tiny_patch16_384", "mask", CLASSES, image_size=arguments.size)
    predictor, inference = Predictor(network), Inference(batch=1)
    modes = make_modes(arguments.grid, network.backbone.depth)
    dataset = Noise(arguments.limit, arguments.size)
    together = alone = 0.0
    for index in range(arguments.limit):
        begin = time.process_time()
        shared = evaluate(predictor, dataset, modes, inference, [index])
        middle = time.process_time()
        single = [evaluate(predictor, dataset, [m], inference, [index])[0] for m in modes]
        end = time.process_time()
        together, alone = together + middle - begin, alone + end - middle
        pairs = zip(shared, single, strict=True)
        same = all(np.array_equal(one.images, other.images) for one, other in pairs)
        print(
            f"image {index + 1}: {together:.1f} of {alone:.1f} s, {together / alone:.3f}; "
            f"{'identical' if same else 'DIFFERENT'}",
            flush=True,
        )
    print(
        f"{arguments.grid}: {len(modes)} modes, {arguments.limit} images: "
        f"{together / alone:.3f} of the time of one by one, "
        f"{mac_ratio(network, dataset.size, modes):.3f} of the MACs"
    )


if __name__ == "__main__":
    main()
