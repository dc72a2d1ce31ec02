"""Train and measure what docs/results.md reports; what is there already is skipped.

    python experiments/evidence.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors
    python experiments/evidence.py --data camvid:DIR --test      (once, at the very end)

From one plain Segmenter, trained in two legs, three seeds each of: plain continued, paumer,
random pausing; the two that pause start with an auxiliary head that was trained alone. Runs lie in
runs/evidence and resume where they stopped; each finished run's small files go to
results/evidence. experiments/evidence_report.py prints what they say.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import record

CRITERIA = {"plain": "none", "paumer": "entropy", "random": "random"}
# Beyond the paper's 13, and for early exit: what a first look at val of seed 0 left
# (results/search). The report chooses for a speed by val of seed 0 alone.
BEYOND = ["4:0.6", "5:0.65", "3:0.4,4:0.4,6:0.4", "3:0.5,5:0.4,7:0.4", "3:0.5,4:0.35,7:0.3"]
BEYOND += ["2:0.2,3:0.3,4:0.35,7:0.3"]
EXIT = ["4:0.6", "5:0.7", "3:0.4,5:0.4", "3:0.4,5:0.4,7:0.4", "3:0.4,4:0.3,7:0.4"]
EXIT += ["3:0.5,5:0.4,8:0.8", "3:0.5,4:0.35,6:0.3,8:0.5", "2:0.3,3:0.3,4:0.35,6:0.3,8:0.5"]
# The auxiliary head is nearly as good after block 9 as the whole network: almost all leave there.
LATE = ["9:0.95", "8:0.95", "5:0.6,9:0.95", "4:0.6,9:0.95", "3:0.4,5:0.4,9:0.95"]
LATE += ["3:0.4,4:0.3,7:0.4,9:0.95", "2:0.2,3:0.3,4:0.35,9:0.95", "2:0.2,3:0.3,4:0.35,8:0.95"]
LATE += ["2:0.2,3:0.3,4:0.35,7:0.4,9:0.95"]
# The same by neighbourhood-mean entropy: with a pause more or less, and more or fewer at the end.
NEIGHBOURS = ["9:0.95", "9:0.9", "9:0.85", "5:0.5,9:0.9", "3:0.2,4:0.3,9:0.9"]
NEIGHBOURS += ["3:0.3,4:0.3,9:0.95", "2:0.1,3:0.25,4:0.3,9:0.95", "2:0.2,3:0.3,4:0.3,9:0.95"]
NEIGHBOURS += ["2:0.2,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.3,4:0.3,9:0.95"]
NEIGHBOURS += ["2:0.25,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.35,4:0.35,9:0.95"]
# What that says is best for a speed: random pausing, and all seeds on test.
CHOSEN = ["3:0.4,4:0.4,6:0.4", "3:0.5,4:0.35,7:0.3", "2:0.2,3:0.3,4:0.35,7:0.3"]
TEST_NEIGHBOURS = ["9:0.95", "9:0.9", "5:0.5,9:0.9", "2:0.1,3:0.25,4:0.3,9:0.95"]
TEST_NEIGHBOURS += ["2:0.25,3:0.3,4:0.3,9:0.95"]


def spell(stages: list[str], words: str) -> list[str]:
    """No pausing, and modes of these stages that all have the same words."""
    return ["none", *(f"{one} {words}".strip() for one in stages)]


PROTECTED = "exit by=neighbours protect=bicyclist+pedestrian"
MODES = {
    "pausing": spell(["paper", *BEYOND], ""),
    "exit": spell(EXIT, "exit"),
    "late": spell(LATE, "exit"),
    "neighbours": spell(NEIGHBOURS, "exit by=neighbours"),
    "protected": spell(NEIGHBOURS[:10], PROTECTED),
}
RANDOM = spell(["paper", *CHOSEN], "by=random")
ORACLE = spell(["paper"], "by=oracle")
TEST_MODES = [*spell(["paper", *CHOSEN], ""), *MODES["exit"]]
TEST_MODES += spell(TEST_NEIGHBOURS, "exit by=neighbours")


def modes_of(kind: str, seed: int, split: str) -> list[str]:
    """What is measured of a run on a split."""
    if kind != "paumer":
        return ["none"] if kind == "plain" else RANDOM
    if split == "test":
        return TEST_MODES
    every = [mode for modes in MODES.values() for mode in modes]
    return every if seed else [*every, *ORACLE]


def main() -> None:
    """Train and measure every kind and seed, some at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_arguments(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--test",
        action="store_true",
        help="measure on the test split too, except random pausing and the oracle",
    )
    arguments = parser.parse_args()
    runs = [(kind, seed) for seed in range(arguments.seeds) for kind in CRITERIA]
    plans = record.first_plans(arguments) | {
        f"evidence/{kind}-{seed}": record.Plan(
            record.SEGMENTER if kind == "plain" else record.SEGMENTER_AUX,
            record.CONTINUE,
            ("--criterion", CRITERIA[kind], "--seed", seed),
        )
        for kind, seed in runs
    }
    kept = record.Record(arguments, plans)
    splits = ["val", "test"] if arguments.test else ["val"]

    def branch(kind: str, seed: int) -> None:
        name = f"evidence/{kind}-{seed}"
        kept.train(name)
        for split in ["val"] if kind == "random" else splits:
            kept.measure(name, split, modes_of(kind, seed, split), counts=True)

    def start() -> None:
        for split in splits:
            kept.measure(record.SEGMENTER, split, ["none"], counts=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(branch, *run) for run in runs] + [pool.submit(start)]
        for done in waiting:
            done.result()


if __name__ == "__main__":
    main()
