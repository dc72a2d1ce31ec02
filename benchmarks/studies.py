"""Train and measure one thing changed at a time; what is there already is skipped.

    python benchmarks/studies.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors

One seed and 320 steps each, from where benchmarks/evidence.py's runs start. The paper's studies:
weight of the auxiliary loss, range of ratios, where training starts, other decoders, a head for
every block. And one option beyond it: the mean of the paused patches as context.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import record

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
record.add_arguments(parser)
parser.add_argument("studies", nargs="*", metavar="study", help="default: all")
arguments = parser.parse_args()
STEPS = ("--steps", 320, "--val-every", 320)
HEAD, PLAIN = "segmenter-aux", "segmenter"
STUDIES = {
    "usual": (HEAD,),
    "aux-0.01": (HEAD, "--aux-weight", 0.01),
    "aux-1": (HEAD, "--aux-weight", 1),
    "range-low": (HEAD, "--ranges", "3-9:0-0.5"),
    "range-wide": (HEAD, "--ranges", "3-9:0-0.9"),
    "imagenet": (arguments.init, "--backbone", "deit_tiny_patch16_224"),
    "plain": (PLAIN, "--criterion", "none"),
    "linear-plain": (PLAIN, "--decoder", "linear", "--criterion", "none"),
    "linear": (HEAD, "--decoder", "linear"),
    "pup-plain": (PLAIN, "--decoder", "pup-tiny", "--criterion", "none"),
    "pup": (HEAD, "--decoder", "pup-tiny"),
    "block-heads": (PLAIN, "--learn", "block-heads"),
    "context": (HEAD, "--context"),
}
PLANS = record.first_plans(arguments) | {
    f"study-{title}": record.Plan(start, "recipes/camvid-continue.yaml", (*STEPS, *words))
    for title, (start, *words) in STUDIES.items()
}
kept = record.Record(arguments, PLANS)
GRID = ["none", "3:0.4", "5:0.6", "3:0.4,5:0.4", "3:0.4,5:0.4,7:0.4", "3:0.5,4:0.35,7:0.3"]
GRID += ["2:0.2,3:0.3,4:0.35,7:0.3"]
# The head is nearly as good after block 9 as the whole network: almost all exit there.
EXITS = ["none", "4:0.6", "9:0.95", "5:0.6,9:0.95", "4:0.6,9:0.95", "3:0.4,4:0.3,7:0.4,9:0.95"]
EXITS += ["2:0.2,3:0.3,4:0.35,9:0.95"]


def study(title):
    """One run and its numbers on val."""
    name = f"study-{title}"
    kept.train(name)
    if title == "block-heads":
        return
    grid = ["none"] if "plain" in title else GRID
    kept.measure(name, "val", "val", grid)
    if grid is GRID and title != "pup":
        kept.measure(name, "val-exit", "val", EXITS, "exit")


if unknown := set(arguments.studies) - set(STUDIES):
    parser.error(f"no study {', '.join(unknown)}: choose from {', '.join(STUDIES)}")
with ThreadPoolExecutor(arguments.jobs) as pool:
    for done in [pool.submit(study, title) for title in arguments.studies or STUDIES]:
        done.result()
