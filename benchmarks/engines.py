"""Time of each engine at each configuration, in one interleaved run, as a Markdown table.

python benchmarks/engines.py --threads 1 --rounds 20
"""

import argparse

import torch

from paumer import build_model
from paumer.criteria import entropy
from paumer.engines import make_engine
from paumer.pause_config import parse_pauses
from paumer.predict import load
from paumer.study.speed import SpeedSettings, environment, in_words, setting, time_interleaved

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="a model directory (default: fresh weights)")
parser.add_argument("--backbone", default="vit_tiny_patch16_384")
parser.add_argument("--engines", nargs="+", default=["torch", "compile", "onnx", "openvino"])
parser.add_argument("--pause", nargs="+", default=["none", "paper"])
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--threads", type=int, default=1)
arguments = parser.parse_args()

torch.manual_seed(0)
if arguments.model:
    network = load(arguments.model).network
else:
    network = build_model(arguments.backbone, "mask", 19, image_size=arguments.size).eval()
pauses = parse_pauses(["none", *arguments.pause])
images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
settings = SpeedSettings(
    rounds=arguments.rounds, threads=arguments.threads, full_size=False, compiled=True
)


def call(engine, pause):
    """One run of an engine at a configuration."""
    return lambda: next(iter(engine.answers(images, [(pause, False)], entropy)))


engines = {name: make_engine(name, network, arguments.threads) for name in arguments.engines}
runs = [call(engine, pause) for engine in engines.values() for pause in pauses]
with setting(images.device, settings, len(pauses)):
    # The first warm-up round exports and compiles.
    seconds = time_interleaved(runs, images.device, arguments.rounds, 2).min(0)
best = dict(zip(engines, seconds.reshape(len(engines), len(pauses)), strict=True))

print(f"{in_words(environment(images, settings))}; ms, and in brackets the speed-up over `none` in")
print("that engine as a share of what the multiply-adds promise; best of the rounds\n")
print(f"| pause | multiply-adds | {' | '.join(engines)} |")
print(f"| --- | --: |{' --: |' * len(engines)}")
size = (arguments.size, arguments.size)
whole = network.multiply_adds(size)
for number, pause in enumerate(pauses):
    promised = whole / network.multiply_adds(size, pause)
    cells = [
        f"{1000 * times[number]:.1f} ({times[0] / times[number] / promised:.2f})"
        for times in best.values()
    ]
    print(f"| `{pause}` | {promised:.2f}x | {' | '.join(cells)} |")
