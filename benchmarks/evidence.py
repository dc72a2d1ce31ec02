"""Train and measure what docs/results.md reports; what is there already is skipped.

    python benchmarks/evidence.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors
    python benchmarks/evidence.py --data camvid:DIR --test      (once, at the very end)

From one plain Segmenter, trained in two legs, three seeds each of: plain continued, paumer,
random pausing; the two that pause start with an auxiliary head that was trained alone. Runs lie in
runs/evidence and resume where they stopped; each finished run's small files go to results/.
benchmarks/evidence_report.py prints what they say.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import record

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
record.add_arguments(parser)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument(
    "--test",
    action="store_true",
    help="measure on the test split too, except random pausing and the oracle",
)
arguments = parser.parse_args()
KINDS = {"plain": "none", "paumer": "entropy", "random": "random"}
# Beyond the paper's 13, and for early exit: what a first look at val of seed 0 left
# (results/tried.jsonl). The report chooses for a speed by val of seed 0 alone.
BEYOND = ["4:0.6", "5:0.65", "3:0.4,4:0.4,6:0.4", "3:0.5,5:0.4,7:0.4", "3:0.5,4:0.35,7:0.3"]
BEYOND += ["2:0.2,3:0.3,4:0.35,7:0.3"]
EXIT = [
    "4:0.6",
    "5:0.7",
    "3:0.4,5:0.4",
    "3:0.4,5:0.4,7:0.4",
    "3:0.4,4:0.3,7:0.4",
    "3:0.5,5:0.4,8:0.8",
]
EXIT += ["3:0.5,4:0.35,6:0.3,8:0.5", "2:0.3,3:0.3,4:0.35,6:0.3,8:0.5"]
# The auxiliary head is nearly as good after block 9 as the whole network: almost all leave there.
LATE = ["9:0.95", "8:0.95", "5:0.6,9:0.95", "4:0.6,9:0.95", "3:0.4,5:0.4,9:0.95"]
LATE += ["3:0.4,4:0.3,7:0.4,9:0.95", "2:0.2,3:0.3,4:0.35,9:0.95", "2:0.2,3:0.3,4:0.35,8:0.95"]
LATE += ["2:0.2,3:0.3,4:0.35,7:0.4,9:0.95"]
# The same by neighbourhood-mean entropy: with a pause more or less, and more or fewer at the end.
NEIGHBOURS = ["9:0.95", "9:0.9", "9:0.85", "5:0.5,9:0.9", "3:0.2,4:0.3,9:0.9"]
NEIGHBOURS += ["3:0.3,4:0.3,9:0.95", "2:0.1,3:0.25,4:0.3,9:0.95", "2:0.2,3:0.3,4:0.3,9:0.95"]
NEIGHBOURS += ["2:0.2,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.3,4:0.3,9:0.95"]
NEIGHBOURS += ["2:0.25,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.35,4:0.35,9:0.95"]
GRIDS = {"exit": EXIT, "late": LATE, "neighbours": NEIGHBOURS, "protected": NEIGHBOURS[:10]}
WORDS = {"exit": "exit", "late": "exit", "neighbours": "exit by=neighbours"}
WORDS |= {"protected": "exit by=neighbours protect=bicyclist+pedestrian"}
FIXED = ["9:0.95", "9:0.9", "5:0.5,9:0.9", "2:0.1,3:0.25,4:0.3,9:0.95"]
TEST_GRIDS = {"exit": EXIT, "neighbours": [*FIXED, "2:0.25,3:0.3,4:0.3,9:0.95"]}
# What that says is best for a speed: random pausing, and all seeds on test.
CHOSEN = ["3:0.4,4:0.4,6:0.4", "3:0.5,4:0.35,7:0.3", "2:0.2,3:0.3,4:0.35,7:0.3"]
RUNS = [(kind, seed) for seed in range(arguments.seeds) for kind in KINDS]
PLANS = record.first_plans(arguments) | {
    f"{kind}-{seed}": record.Plan(
        "segmenter" if kind == "plain" else "segmenter-aux",
        "recipes/camvid-continue.yaml",
        ("--criterion", KINDS[kind], "--seed", seed),
    )
    for kind, seed in RUNS
}
kept = record.Record(arguments, PLANS)


def branch(kind, seed):
    """One kind and seed: its training and its numbers."""
    name = f"{kind}-{seed}"
    kept.train(name)
    for split in ["val", "test"] if arguments.test and kind != "random" else ["val"]:
        if kind == "plain":
            kept.measure(name, split, split, ["none"])
            continue
        more = BEYOND if kind == "paumer" and split == "val" else CHOSEN
        kept.measure(name, split, split, ["paper", *more], f"by={KINDS[kind]}")
        if kind == "paumer":
            for title, grid in (GRIDS if split == "val" else TEST_GRIDS).items():
                kept.measure(name, f"{split}-{title}", split, grid, WORDS[title])
        if kind == "paumer" and seed == 0 and split == "val":
            kept.measure(name, "val-oracle", split, ["paper"], "by=oracle")


def first():
    """Numbers of the Segmenter that all start from."""
    for split in ["val", "test"] if arguments.test else ["val"]:
        kept.measure("segmenter", split, split, ["none"])


with ThreadPoolExecutor(arguments.jobs) as pool:
    waiting = [pool.submit(branch, *each) for each in RUNS] + [pool.submit(first)]
    for done in waiting:
        done.result()
