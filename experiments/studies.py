"""Train and measure one thing changed at a time; what is there already is skipped.

    python experiments/studies.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors

One seed and 320 steps each, from where experiments/evidence.py's runs start. The paper's studies:
weight of the auxiliary loss, range of ratios, where training starts, other decoders, a head for
every block. And one option beyond it: the mean of the paused patches as context. Runs lie in
runs/studies, their small files in results/studies; experiments/studies_report.py prints them.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import record
from evidence import spell

STEPS = ("--steps", 320, "--val-every", 320)
OPTIONS: dict[str, tuple[object, ...]] = {
    "usual": (),
    "aux-0.01": ("--aux-weight", 0.01),
    "aux-1": ("--aux-weight", 1),
    "range-low": ("--ranges", "3-9:0-0.5"),
    "range-wide": ("--ranges", "3-9:0-0.9"),
    "imagenet": ("--backbone", "deit_tiny_patch16_224"),
    "plain": ("--criterion", "none"),
    "linear-plain": ("--decoder", "linear", "--criterion", "none"),
    "linear": ("--decoder", "linear"),
    "pup-plain": ("--decoder", "pup-tiny", "--criterion", "none"),
    "pup": ("--decoder", "pup-tiny"),
    "block-heads": ("--learn", "block-heads"),
    "context": ("--context",),
}
"""What each study changes of the usual training."""

PAUSING = ["none", "3:0.4", "5:0.6", "3:0.4,5:0.4", "3:0.4,5:0.4,7:0.4", "3:0.5,4:0.35,7:0.3"]
PAUSING += ["2:0.2,3:0.3,4:0.35,7:0.3"]
# The head is nearly as good after block 9 as the whole network: almost all exit there.
EXIT = ["4:0.6", "9:0.95", "5:0.6,9:0.95", "4:0.6,9:0.95", "3:0.4,4:0.3,7:0.4,9:0.95"]
EXIT = spell([*EXIT, "2:0.2,3:0.3,4:0.35,9:0.95"], "exit")


def start_of(title: str, init: str) -> str:
    """What a study starts from: only what pauses needs the auxiliary head."""
    if title == "imagenet":
        return init
    without_head = title == "block-heads" or "plain" in title
    return record.SEGMENTER if without_head else record.SEGMENTER_AUX


def modes_of(title: str) -> list[str]:
    """What is measured of a study; SETR-PUP cannot exit early."""
    if "plain" in title:
        return ["none"]
    return PAUSING if title == "pup" else [*PAUSING, *EXIT]


def main() -> None:
    """Train and measure the studies, some at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_arguments(parser)
    parser.add_argument("studies", nargs="*", metavar="study", help="default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.studies) - set(OPTIONS):
        parser.error(f"no study {', '.join(unknown)}: choose from {', '.join(OPTIONS)}")
    plans = record.first_plans(arguments) | {
        f"studies/{title}": record.Plan(
            start_of(title, arguments.init), record.CONTINUE, (*STEPS, *options)
        )
        for title, options in OPTIONS.items()
    }
    kept = record.Record(arguments, plans)

    def study(title: str) -> None:
        name = f"studies/{title}"
        kept.train(name)
        if title != "block-heads":
            kept.measure(name, "val", modes_of(title))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(study, title) for title in arguments.studies or OPTIONS]:
            done.result()


if __name__ == "__main__":
    main()
