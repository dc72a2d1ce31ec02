"""What a sweep costs against evaluating its modes one by one, interleaved.

Times are of the processor, one thread, so that other work on the machine counts little.

python benchmarks/sweep_cost.py --grid paper
python benchmarks/sweep_cost.py --grid one
python benchmarks/sweep_cost.py --grid two    (a random third of the pairs of blocks)
"""

import argparse
import random
import time

import numpy as np
import torch
import torch.utils.flop_counter

from paumer import Inference, Predictor, build_model
from paumer.classes import ClassSet, distinct_colours
from paumer.data.samples import Sample
from paumer.study.accuracy import count_batch
from paumer.study.grids import grid

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--grid", choices=["paper", "one", "two"], default="paper")
parser.add_argument("--limit", type=int, default=10)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--threads", type=int, default=1)
arguments = parser.parse_args()

torch.set_num_threads(arguments.threads)
torch.manual_seed(0)
rng = random.Random(0)
network = build_model("vit_tiny_patch16_384", "mask", 19, image_size=arguments.size)
predictor = Predictor(network)
modes = grid([arguments.grid], network.backbone.depth, {})
if arguments.grid == "two":
    pairs = sorted({mode.pause.blocks for mode in modes if mode.pause})
    chosen = set(rng.sample(pairs, len(pairs) // 3))
    modes = [mode for mode in modes if mode.pause.blocks in chosen]
one_by_one = Inference(batch=1)


class Noise:
    """A data set of noise."""

    name, split, problems = "noise", "val", ()
    class_set = ClassSet(tuple(map(str, range(19))), distinct_colours(19))


size = (arguments.size, arguments.size)
together = alone = 0.0
for number in range(arguments.limit):
    noise = np.random.default_rng(number)
    image = noise.integers(0, 256, (*size, 3), np.uint8)
    samples = [Sample(str(number), image, noise.integers(0, 19, size).astype(np.uint8))]
    begin = time.process_time()
    shared = count_batch(predictor, Noise(), [number], samples, modes, one_by_one)
    middle = time.process_time()
    single = [
        count_batch(predictor, Noise(), [number], samples, [mode], one_by_one)[0] for mode in modes
    ]
    end = time.process_time()
    together, alone = together + middle - begin, alone + end - middle
    same = all(
        np.array_equal(a.confusion.counts, b.confusion.counts)
        for a, b in zip(shared, single, strict=True)
    )
    print(
        f"image {number + 1}: {together:.1f} of {alone:.1f} s, {together / alone:.3f}; "
        f"{'identical' if same else 'DIFFERENT'}",
        flush=True,
    )

whole = sum(network.macs(size, mode) for mode in modes)
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter, torch.inference_mode():
    images = torch.randn(1, 3, *size)
    for _ in network.forward_many(images, modes):
        pass
print(
    f"{arguments.grid}: {len(modes)} modes, {arguments.limit} images: "
    f"{together / alone:.3f} of the time of one by one, "
    f"{counter.get_total_flops() / 2 / whole:.3f} of the MACs"
)
