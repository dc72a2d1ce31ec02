"""Train one lever of generalisation at a time; what is there already is skipped.

    python experiments/levers.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors

CamVid's val is a part of the drive of most training images, so levers are chosen by leaving a whole
sequence out of training and validating on it. Each is a plain Segmenter on short crops, 600 steps,
one seed, for two sequences; its difference to the first row decides. Runs lie in runs/levers, their
small files in results/levers.
"""

import argparse
import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record
from reading import print_table

FOLDS = ("0006R0", "0001TP")
"""The sequences that are left out."""

RECIPE = "recipes/camvid-segmenter.yaml"
SHORT = ("--steps", 600, "--val-every", 600, "--save-every", 100)
LEVERS: dict[str, tuple[object, ...]] = {
    "usual": (),
    "ema": ("--ema", 0.99),
    "light": ("--colour", 1.6, "--blur", 0.3, "--noise", 0.04, "--compress", 0.3),
    "scenes": ("--batch", 16),
    "layer-decay": ("--layer-decay", 0.75),
    "scale": ("--scale", "0.5-2"),
    "balance": ("--balance", 0.5),
    "dice": ("--dice", 0.5),
    "drop-path": ("--drop-path", 0.1),
    "cutout": ("--cutout", 0.5),
    "larger": ("--fit", "640x480"),
    "length": ("--steps", 1800, "--val-every", 1800),
}
"""What each lever changes of the usual training."""


def name_of(lever: str, fold: str) -> str:
    """The run of a lever that leaves out a sequence."""
    return f"levers/{lever}-{fold}"


def main() -> None:
    """Train the levers, some at a time, or print what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_arguments(parser)
    parser.add_argument("levers", nargs="*", metavar="lever", help="default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.levers) - set(LEVERS):
        parser.error(f"no lever {', '.join(unknown)}: choose from {', '.join(LEVERS)}")
    runs = [(lever, fold) for lever in arguments.levers or LEVERS for fold in FOLDS]
    plans = {
        name_of(lever, fold): record.Plan(
            arguments.init,
            RECIPE,
            (*SHORT, *LEVERS[lever], "--hold-out", fold),
            "+scenes:300" if lever == "scenes" else "",
        )
        for lever, fold in runs
    }
    kept = record.Record(arguments, plans)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(kept.train, plans))
    report(arguments.results)


def report(results: Path) -> None:
    """Print the mIoU on the sequence that was left out, and the mean's difference to the usual."""
    found = {lever: [_miou(results / name_of(lever, fold)) for fold in FOLDS] for lever in LEVERS}
    usual = found["usual"]
    rows = []
    for lever, values in found.items():
        cells = ["" if value is None else f"{100 * value:.2f}" for value in values]
        pairs = [(value, base) for value, base in zip(values, usual, strict=True)]
        known = [100 * (value - base) for value, base in pairs if value and base]
        gain = f"{sum(known) / len(known):+.2f}" if len(known) == len(FOLDS) else ""
        rows.append((lever, " ".join(map(str, LEVERS[lever])), *cells, gain))
    print_table(("lever", "options", *FOLDS, "mean gain"), rows)


def _miou(kept: Path) -> float | None:
    """The last validation of a run; None where it is not kept yet."""
    if not (kept / "metrics.csv").exists():
        return None
    with (kept / "metrics.csv").open(newline="") as file:
        return float(list(csv.DictReader(file))[-1]["miou none"])


if __name__ == "__main__":
    main()
