"""How much faster any engine could be: the network's MACs a second against a core's best.

python benchmarks/engine_bound.py

The best is that of large square matrix products, timed in turns with the network; softmax, norms
and activations count as nothing, so an engine with matrix products as fast gains at most what the
last lines say.
"""

import argparse
import time

import torch

from paumer import build_model

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backbone", default="vit_tiny_patch16_384")
parser.add_argument("--rounds", type=int, default=20)
arguments = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
network = build_model(arguments.backbone, "mask", 19, image_size=512).eval()
image = torch.randn(1, 3, 512, 512)
modes = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4")
left, right = torch.randn(2, 1536, 1536)
work = {"matrix product": (1536**3, lambda: left @ right)}
for mode in modes:
    macs = network.macs((512, 512), mode)
    work[mode] = macs, lambda mode=mode: network(image, mode, full_size=False)

best = dict.fromkeys(work, float("inf"))
with torch.inference_mode():
    for _ in range(arguments.rounds + 2):
        for name, (_, run) in work.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
rates = {name: macs / best[name] / 1e9 for name, (macs, _) in work.items()}
for name, rate in rates.items():
    print(f"{name}: {rate:.1f} billion MACs a second")
with torch.inference_mode(), torch.profiler.profile() as profile:
    network(image, full_size=False)
parts = sorted(profile.key_averages(), key=lambda part: -part.self_cpu_time_total)
whole = sum(part.self_cpu_time_total for part in parts)
for part in parts[:4]:
    print(f"{part.key}: {100 * part.self_cpu_time_total / whole:.0f}% of the time without pausing")
for mode in modes:
    print(f"{mode}: at most {rates['matrix product'] / rates[mode]:.2f}x as fast in fp32")
