"""Print what results/ says of the three-seed runs, and draw it.

    paumer bench --model runs/evidence/paumer-0/model --input 640x480 --threads 1 --no-upsample \\
        --mode none paper ... --json results/speed.json
        (with exit: speed-exit.json; with exit by=neighbours: speed-neighbours.json)
    python benchmarks/evidence_report.py --split val

Differences are of means over seeds, with a paired bootstrap over images (95%). The figure and the
spline table hold the Pareto front. The modes for a speed are those that are best on val of seed 0
among the ones measured to be that fast.
"""

import argparse
from pathlib import Path

from reading import Results, difference, in_words, mean, spread, stages, table

from paumer.measurement import baseline, pareto_front
from paumer.pause_config import PAPER_CONFIGS
from paumer.study.paper_figures import draw_tradeoff
from paumer.study.tradeoff import Budget, choose, spline_table

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--results", type=Path, default=Path("results"))
parser.add_argument("--split", default="val")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--out", type=Path, default=Path("out/evidence"))
arguments = parser.parse_args()
results, split = Results(arguments.results, arguments.seeds), arguments.split

start = results.tallies("segmenter", split)
plain, paumer, random = (results.tallies(kind, split) for kind in ("plain", "paumer", "random"))
# Early exits: after early blocks, after late ones, and these by neighbourhood-mean entropy.
EXITS = ("exit", "late", "neighbours", "protected")
SPEEDS = {"late": "exit", "protected": "neighbours"}
exits = {title: results.tallies("paumer", f"{split}-{title}") for title in EXITS}
if not (plain and paumer and start):
    parser.error(f'not all runs are in "{arguments.results}": run benchmarks/evidence.py first')
speed = results.speeds("speed.json")
exit_speeds = {
    title: results.speeds(f"speed-{SPEEDS.get(title, title)}.json", speed.get("none"))
    for title in EXITS
}
base = plain["none"]
print(f"Plain Segmenter continued, {split}: {spread(base)}, {len(base)} seeds", end="")
print(f"; where it started: {mean(start['none']):.2f}\n")


def timed(pause, measured):
    """Measured and theoretical speed-up of a mode, as text."""
    item = measured.get(pause)
    return [f"{item.speed_up:.2f}x", f"{item.mac_ratio:.2f}x"] if item else ["", ""]


def against(items):
    """What is lost against the baseline and against where it started, as text."""
    return [in_words(difference(items, base)), f"{mean(items) - mean(start['none']):+.2f}"]


LOST = ["against plain", "against the start"]
WORDS = {"exit": "early exit", "late": "late exit", "neighbours": "late exit, neighbourhood mean"}
WORDS |= {"protected": "neighbourhood mean, protected"}
rows = []
for pause, items in paumer.items():
    row = [f"`{pause}`", *timed(pause, speed), spread(items), *against(items)]
    if pause in random:
        row += [spread(random[pause]), in_words(difference(items, random[pause]))]
    rows.append(row + [""] * (8 - len(row)))
head = ["stages", "speed-up", "MACs", "entropy", *LOST, "random", "entropy - random"]
table(head, rows)
for title, tallies in exits.items():
    rows = [
        [f"`{pause}`", *timed(pause, exit_speeds[title]), spread(items), *against(items)]
        for pause, items in tallies.items()
    ]
    if rows:
        table([WORDS[title], "speed-up", "MACs", "mIoU", *LOST], rows)
if oracle := results.tallies("paumer-0", f"{split}-oracle"):
    rows = [[f"`{p}`", f"{mean(i):.2f}", f"{mean(paumer[p][:1]):.2f}"] for p, i in oracle.items()]
    table(["stages, seed 0", "oracle", "entropy"], rows)

print("What was asked:\n")
gap = difference(paumer["none"], base)
print(f"- Unpaused, against plain continued: {in_words(gap)}")
KINDS = {
    "pausing": ("paumer", "val", paumer, speed),
    "random pausing": ("random", "val", random, speed),
} | {WORDS[t]: ("paumer", f"val-{t}", exits[t], exit_speeds[t]) for t in EXITS}
for how, (kind, title, tallies, measured) in KINDS.items():
    seeds = results.measurements(kind, title, measured) if measured else []
    for factor in (1.5, 2.0, 2.5, 3.0) if seeds and tallies else ():
        chosen, met = choose(seeds[0], Budget(speed_up=factor))
        pause = stages(chosen.mode)
        if not met:
            print(f"- {factor}x, {how}: none is that fast (fastest {chosen.speed_up:.2f}x)")
            break
        said = in_words(difference(tallies[pause], base)) if pause in tallies else "not measured"
        print(f"- {factor}x, {how}: `{pause}` ({chosen.speed_up:.2f}x): {said}")
paper = [str(pause) for pause in PAPER_CONFIGS if str(pause) in random]
leads = {pause: difference(paumer[pause], random[pause]) for pause in paper}
ahead = [pause for pause, (found, _, _) in leads.items() if found > 0]
if paper:
    print(f"- Entropy is ahead of random pausing at {len(ahead)} of {len(paper)} modes")
if paper and speed:
    largest = sorted(paper, key=lambda pause: -speed[pause].mac_ratio)[:6]
    sure = sum(leads[pause][1] > 0 for pause in largest)
    print(f"- At the 6 with the largest theoretical speed-up the interval excludes 0 at {sure}")
print()
if speed:
    series = {
        "entropy": results.mean_measurements("paumer", split, speed),
        "random": results.mean_measurements("random", split, speed),
    } | {
        WORDS[title]: results.mean_measurements("paumer", f"{split}-{title}", exit_speeds[title])
        for title in EXITS
        if title != "protected"  # One line more could not be told apart.
    }
    reference = baseline(results.mean_measurements("plain", split, speed))
    series = {name: items for name, items in series.items() if len(items) > 1}
    draw_tradeoff(series, arguments.out / f"tradeoff-{split}", reference=reference, only_front=True)
    for name, items in series.items():
        # The unpaused one counts also where a faster one is better.
        columns = spline_table([baseline(items), *pareto_front(items)], reference)
        values = ["" if (d := c.difference) is None else f"{100 * d:+.2f}" for c in columns]
        table([name, *(f"{c.speed_up:.2f}x" for c in columns)], [["points", *values]])
    print(f"wrote {arguments.out}/tradeoff-{split}.png and .svg")
