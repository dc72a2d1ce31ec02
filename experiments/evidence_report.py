r"""Print what results/evidence says of the three-seed runs, and draw it.

    paumer bench --model runs/evidence/paumer-0/model --input 640x480 --threads 1 --no-upsample \
        --mode none paper ... --json results/evidence/speed.json
        (with exit: speed-exit.json; with exit by=neighbours: speed-neighbours.json)
    python experiments/evidence_report.py --split val

Differences are of means over seeds, with a paired bootstrap over images (95%). The figure and the
spline table hold the Pareto front. The modes for a speed are those that are best on val of seed 0
among the ones measured to be that fast.
"""

import argparse
from pathlib import Path

from evidence import MODES, ORACLE, RANDOM
from reading import Results, Speeds, Tallies, difference, in_words, mean, print_table, spread

from paumer.measurement import Measurement, baseline, pareto_front
from paumer.pause_config import PAPER_CONFIGS
from paumer.study.accuracy import Tally
from paumer.study.paper_figures import draw_tradeoff
from paumer.study.tradeoff import Budget, choose, spline_table

# Early exits: after early blocks, after late ones, and these by neighbourhood-mean entropy.
TITLES = {
    "exit": "early exit",
    "late": "late exit",
    "neighbours": "late exit, neighbourhood mean",
    "protected": "neighbourhood mean, protected",
}
SPEED_FILES = {
    "pausing": "speed.json",
    "exit": "speed-exit.json",
    "late": "speed-exit.json",
    "neighbours": "speed-neighbours.json",
    "protected": "speed-neighbours.json",
}
LOST = ["against plain", "against the start"]


class Report:
    """What was counted of a split, and how fast each group of modes is."""

    def __init__(self, results: Results, split: str) -> None:
        self.results, self.split = results, split
        self.start = results.tallies("segmenter", split, ["none"])
        self.plain = results.tallies("plain", split, ["none"])
        self.random = results.tallies("random", split, RANDOM)
        self.groups = {title: results.tallies("paumer", split, m) for title, m in MODES.items()}
        self.paumer = self.groups["pausing"]
        if not (self.plain and self.paumer and self.start):
            raise SystemExit(
                f'not all runs are in "{results.folder}": run experiments/evidence.py first'
            )
        self.speed = results.speeds(SPEED_FILES["pausing"])
        self.speeds = {
            title: results.speeds(file, None if title == "pausing" else self.speed.get("none"))
            for title, file in SPEED_FILES.items()
        }

    def print_tables(self) -> None:
        """Every mode: its speed, its accuracy, and what is lost."""
        base, start = self.plain["none"], self.start["none"]
        print(f"Plain Segmenter continued, {self.split}: {spread(base)}, {len(base)} seeds", end="")
        print(f"; where it started: {mean(start):.2f}\n")
        rows = []
        for stages, items in self.paumer.items():
            row = self._row(stages, items, self.speed)
            if stages in self.random:
                lead = in_words(difference(items, self.random[stages]))
                row += [spread(self.random[stages]), lead]
            rows.append(row + [""] * (8 - len(row)))
        head = ["stages", "speed-up", "MACs", "entropy", *LOST, "random", "entropy - random"]
        print_table(head, rows)
        for title, words in TITLES.items():
            if tallies := self.groups[title]:
                rows = [self._row(name, t, self.speeds[title]) for name, t in tallies.items()]
                print_table([words, "speed-up", "MACs", "mIoU", *LOST], rows)
        if oracle := self._oracle():
            print_table(["stages, seed 0", "oracle", "entropy"], oracle)

    def _row(self, stages: str, items: list[Tally], speeds: Speeds) -> list[str]:
        timed = speeds.get(stages)
        times = [f"{timed.speed_up:.2f}x", f"{timed.mac_ratio:.2f}x"] if timed else ["", ""]
        lost = in_words(difference(items, self.plain["none"]))
        since = f"{mean(items) - mean(self.start['none']):+.2f}"
        return [f"`{stages}`", *times, spread(items), lost, since]

    def _oracle(self) -> list[list[str]]:
        """The oracle's mIoU, which seed 0 has, beside that of entropy."""
        runs = self.results.measurements("paumer-0", self.split, ORACLE, self.speed)
        found = {str(item.mode.pause): item.miou for item in runs[0] if item.miou} if runs else {}
        return [
            [f"`{name}`", f"{100 * miou:.2f}", f"{mean(self.paumer[name][:1]):.2f}"]
            for name, miou in found.items()
        ]

    def print_choices(self) -> None:
        """For each speed-up the best mode, and what it loses."""
        base = self.plain["none"]
        print("What was asked:\n")
        gap = difference(self.paumer["none"], base)
        print(f"- Unpaused, against plain continued: {in_words(gap)}")
        self._choose("pausing", "paumer", MODES["pausing"], self.paumer, self.speed)
        self._choose("random pausing", "random", RANDOM, self.random, self.speed)
        for title, words in TITLES.items():
            self._choose(words, "paumer", MODES[title], self.groups[title], self.speeds[title])
        paper = [str(pause) for pause in PAPER_CONFIGS if str(pause) in self.random]
        if not paper:
            return
        leads = {pause: difference(self.paumer[pause], self.random[pause]) for pause in paper}
        ahead = sum(value > 0 for value, _, _ in leads.values())
        print(f"- Entropy is ahead of random pausing at {ahead} of {len(paper)} modes")
        if self.speed:
            ratios = {pause: self.speed[pause].mac_ratio or 0 for pause in paper}
            largest = sorted(paper, key=lambda pause: -ratios[pause])[:6]
            sure = sum(leads[pause][1] > 0 for pause in largest)
            where = "At the 6 with the largest theoretical speed-up"
            print(f"- {where} the interval excludes 0 at {sure}")

    def _choose(
        self, words: str, kind: str, modes: list[str], tallies: Tallies, speeds: Speeds
    ) -> None:
        seeds = self.results.measurements(kind, "val", modes, speeds) if speeds else []
        for factor in (1.5, 2.0, 2.5, 3.0) if seeds and tallies else ():
            chosen, met = choose(seeds[0], Budget(speed_up=factor))
            stages = str(chosen.mode.pause)
            if not met:
                print(f"- {factor}x, {words}: none is that fast (fastest {chosen.speed_up:.2f}x)")
                break
            lost = "not measured"
            if stages in tallies:
                lost = in_words(difference(tallies[stages], self.plain["none"]))
            print(f"- {factor}x, {words}: `{stages}` ({chosen.speed_up:.2f}x): {lost}")

    def draw(self, out: Path) -> None:
        """Print the spline tables and draw the figure."""
        series = {
            "entropy": self._means("paumer", "pausing"),
            "random": self.results.mean_measurements("random", self.split, RANDOM, self.speed),
        }
        for title, words in TITLES.items():
            if title != "protected":  # One line more could not be told apart.
                series[words] = self._means("paumer", title)
        plain = self.results.mean_measurements("plain", self.split, ["none"], self.speed)
        reference = baseline(plain)
        series = {name: items for name, items in series.items() if len(items) > 1}
        path = out / f"tradeoff-{self.split}"
        draw_tradeoff(series, path, reference=reference, only_front=True)
        for name, items in series.items():
            # The unpaused one counts also where a faster one is better.
            columns = spline_table([baseline(items), *pareto_front(items)], reference)
            values = ["" if (d := c["difference"]) is None else f"{100 * d:+.2f}" for c in columns]
            print_table([name, *(f"{c['speed_up']:.2f}x" for c in columns)], [["points", *values]])
        print(f"wrote {path}.png and .svg")

    def _means(self, kind: str, title: str) -> list[Measurement]:
        modes, speeds = MODES[title], self.speeds[title]
        return self.results.mean_measurements(kind, self.split, modes, speeds)


def main() -> None:
    """Print the tables of one split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results/evidence"))
    parser.add_argument("--split", default="val")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/evidence"))
    arguments = parser.parse_args()
    report = Report(Results(arguments.results, arguments.seeds), arguments.split)
    report.print_tables()
    report.print_choices()
    print()
    if report.speed:
        report.draw(arguments.out)


if __name__ == "__main__":
    main()
