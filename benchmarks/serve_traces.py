"""Traces of requests on the real service: the governor, each fixed point, and the best there is."""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from serve_client import Answer, get_json, service, throughput
from serve_compare import Verdict
from serve_levels import Images, Outcome, Row, Setting, send_all, settle
from traces import Outcome as Computed
from traces import best, read_traces, simulate

GOVERNED = "governed"


def traces(arguments: Namespace, images: Images, setting: Setting) -> Outcome:
    """Replay each trace with the governor and at each fixed point, in turns, on one service."""
    latency = ("--latency-ms", 1000 * setting.target)
    found: dict[str, dict[str, Row]] = {}
    verdicts: list[Verdict] = []
    with service(arguments.model, arguments.cores[0], *latency) as (url, _):
        points = [point["name"] for point in get_json(url, "/v1/model")["points"]]
        seconds = [1 / throughput(url, images, 4, 60, mode=name)[0] for name in points]
        mious = [100 * (setting.mious[name] or 0.0) for name in points]
        for name, trace in read_traces(arguments.traces).items():
            rows = found[name] = {}
            for mode in (GOVERNED, *points):
                settle(url, setting)
                options = {} if mode == GOVERNED else {"mode": mode}
                answers = send_all(url, images, [setting.s0 * at for at in trace], **options)
                rows[mode] = describe(answers, setting)
                print_row(name, mode, rows[mode])
            scaled = [setting.s0 * at for at in trace]
            rows["best"] = _computed(best(scaled, seconds, mious, setting.target))
            rows["simulated"] = _computed(simulate(scaled, seconds, mious, setting.target))
            for mode in ("best", "simulated"):
                print_row(name, mode, rows[mode])
            verdicts += _judge(name, rows, points)
    _draw(found, arguments.out / "traces.png")
    return found, verdicts


def describe(answers: Sequence[Answer], setting: Setting) -> Row:
    """One replay in numbers; requests in time count, and the mIoU of what was answered."""
    good = [answer for answer in answers if answer.status == 200]
    mious = [setting.mious.get(answer.point or "") or 0.0 for answer in good]
    return {
        "requests": len(answers),
        "accepted": len(good),
        "in_time": sum(answer.seconds <= setting.target for answer in good),
        "miou": 100 * sum(mious) / max(1, len(mious)),
        "points": dict(Counter(answer.point for answer in good)),
        "over_time": [(round(answer.due, 2), answer.point) for answer in good],
    }


def _computed(outcome: Computed) -> Row:
    names = ("requests", "accepted", "in_time")
    row: Row = {name: getattr(outcome, name) for name in names}
    return {**row, "miou": outcome.accuracy, "points": {}}


def print_row(trace: str, mode: str, row: Row) -> None:
    """Print one replay."""
    print(
        f"{trace:12} {mode:10} in time {row['in_time']:5d} of {row['requests']:5d}, "
        f"accepted {row['accepted']:5d}, mIoU {row['miou']:.2f} {row['points']}",
        flush=True,
    )


def _judge(trace: str, rows: dict[str, Row], points: Sequence[str]) -> list[Verdict]:
    """What is wanted of the governor on a trace."""
    ours, bound, simulated = rows[GOVERNED], rows["best"], rows["simulated"]
    sure = ours["in_time"] / max(1, ours["accepted"])
    ratio, lost = ours["in_time"] / bound["in_time"], bound["miou"] - ours["miou"]
    apart = abs(ours["in_time"] - simulated["in_time"]) / simulated["in_time"]
    verdicts = [
        (f"{trace}: accepted in time", ">= 0.99", f"{sure:.3f}", sure >= 0.99),
        (f"{trace}: in time of the best", ">= 0.95", f"{ratio:.3f}", ratio >= 0.95),
        (f"{trace}: mIoU below the best", "<= 0.5", f"{lost:.2f}", lost <= 0.5),
        (f"{trace}: simulated apart", "<= 0.03", f"{apart:.3f}", apart <= 0.03),
    ]
    if trace == "steady":
        slow = sum(ours["points"].get(name, 0) for name in points[:2]) / max(1, ours["accepted"])
        verdicts.append((f"{trace}: at the first two", ">= 0.95", f"{slow:.3f}", slow >= 0.95))
    if trace == "diurnal":
        fast, whole = rows[points[-1]]["miou"], rows[points[0]]["miou"]
        part = (ours["miou"] - fast) / (whole - fast)
        verdicts.append((f"{trace}: way to unpaused", ">= 0.67", f"{part:.2f}", part >= 2 / 3))
    return verdicts


def _draw(found: dict[str, dict[str, Row]], path: Path) -> None:
    """Draw requests in time against the mean mIoU served, one panel for each trace."""
    figure, axes = plt.subplots(1, len(found), figsize=(3 * len(found), 3.2), layout="constrained")
    for axis, (trace, rows) in zip(axes, found.items(), strict=True):
        for mode, row in rows.items():
            if mode == "simulated":
                continue
            marker = {GOVERNED: "*", "best": "D"}.get(mode, "o")
            colour = {GOVERNED: "#0072b2", "best": "0.5"}.get(mode, "#d55e00")
            place = (row["in_time"] / row["requests"], row["miou"])
            axis.plot(*place, marker, color=colour, markersize=9)
            axis.annotate(mode, place, textcoords="offset points", xytext=(0, 8), ha="center")
        axis.set_title(trace)
        axis.set_xlabel("requests in time")
        axis.margins(0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean mIoU served, %")
    figure.savefig(path, dpi=150)
