"""How much faster any engine could be: the network's MACs a second against a core's best.

    python benchmarks/engine_bound.py

The best is that of large square matrix products, timed in turns with the network; softmax, norms
and activations count as nothing, so an engine with matrix products as fast gains at most what the
last lines say.
"""

import argparse
from collections.abc import Callable

import torch

from paumer import build_model
from paumer.study.speed import time_interleaved

MODES = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4")
SIDE = 1536


def main() -> None:
    """Time matrix products and modes in turns, then print rates and bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="vit_tiny_patch16_384")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = build_model(arguments.backbone, "mask", 19, image_size=512).eval()
    image = torch.randn(1, 3, 512, 512)
    left, right = torch.randn(2, SIDE, SIDE)

    def run(mode: str) -> Callable[[], object]:
        return lambda: network(image, mode, full_size=False)

    macs = {"matrix product": SIDE**3} | {m: network.macs((512, 512), m) for m in MODES}
    calls: dict[str, Callable[[], object]] = {"matrix product": lambda: left @ right}
    calls |= {mode: run(mode) for mode in MODES}
    with torch.inference_mode():
        cpu = torch.device("cpu")
        seconds = time_interleaved(list(calls.values()), cpu, arguments.rounds, warmup=2)
    best = dict(zip(calls, seconds.min(0).tolist(), strict=True))
    rates = {name: macs[name] / best[name] / 1e9 for name in calls}
    for name, rate in rates.items():
        print(f"{name}: {rate:.1f} billion MACs a second")
    with torch.inference_mode(), torch.profiler.profile() as profile:
        network(image, full_size=False)
    parts = sorted(profile.key_averages(), key=lambda part: -part.self_cpu_time_total)
    whole = sum(part.self_cpu_time_total for part in parts)
    for part in parts[:4]:
        ratio = part.self_cpu_time_total / whole
        print(f"{part.key}: {100 * ratio:.0f}% of the time without pausing")
    for mode in MODES:
        print(f"{mode}: at most {rates['matrix product'] / rates[mode]:.2f}x as fast in fp32")


if __name__ == "__main__":
    main()
