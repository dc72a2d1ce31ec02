"""`paumer demo`: the whole idea on held-out pictures, as a page to open."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paumer.commands.console import (
    at_least_one,
    console,
    new_table,
    progress_bar,
    say,
    write_csv,
)
from paumer.disk import replace_file
from paumer.options import DemoOptions
from paumer.pause_config import PauseConfig

if TYPE_CHECKING:
    from paumer.data.datasets import Dataset
    from paumer.predict import Inference, Predictor
    from paumer.study.tradeoff import Measurement

DIALS = ("3:0.2", "3:0.4", "3:0.4,5:0.4", "3:0.4,5:0.4,7:0.4", "3:0.6,5:0.6")
"""What is counted and timed beside the model's operating points."""


def demo(options: DemoOptions = DemoOptions()) -> None:  # noqa: B008
    """Segment held-out pictures at several speeds: a trade-off plot, pause pictures, a report."""
    import numpy as np
    import torch

    from paumer.data.datasets import open_dataset
    from paumer.predict import load
    from paumer.study.paper_figures import draw_tradeoff

    if options.threads is not None:
        torch.set_num_threads(at_least_one(options.threads, "threads"))
    predictor = load(options.model)
    dataset = open_dataset(options.data, "test")
    count = min(len(dataset), at_least_one(options.pictures, "pictures"))
    places = np.linspace(0, len(dataset) - 1, count).round().astype(int).tolist()
    shown = _ways(predictor, "none", *predictor.points)
    depth = predictor.network.pausing_depth
    dials = [text for text in DIALS if PauseConfig.parse(text).blocks[-1] < depth]
    counted = _ways(predictor, "none", *predictor.points, *dials)
    found = _measure(predictor, dataset, places, counted)
    # Without pausing both lines begin.
    exits = [item for item in found.values() if item.early_exit or not item.pause]
    lines = {
        "pausing": [item for item in found.values() if not item.early_exit],
        "pausing with early exit": exits if len(exits) > 1 else [],
    }
    draw_tradeoff({name: items for name, items in lines.items() if items}, options.out / "tradeoff")
    write_csv(options.out / "demo.csv", [{"point": n, **m.to_json()} for n, m in found.items()])
    some = places[:: max(1, len(places) // 3)][:3]
    pictures = _draw_pictures(predictor, dataset, some, shown, options.out)
    title = f"{options.model} on {count} held-out pictures of {dataset.name}"
    report = options.out / "report.html"
    replace_file(report, _page(title, found, pictures).encode())
    _print(title, found)
    say(f"open {report}")


def _ways(predictor: "Predictor", *names: str) -> "dict[str, Inference]":
    """How to run each of these; of those that run alike the first stays."""
    ways = {name: predictor.way(name, batch=4) for name in names}
    first = {way: name for name, way in reversed(ways.items())}
    return {name: way for name, way in ways.items() if first[way] == name}


def _measure(
    predictor: "Predictor", dataset: "Dataset", places: list[int], named: "dict[str, Inference]"
) -> "dict[str, Measurement]":
    """The mIoU and then the speed of each way: never both at once."""
    from paumer.study.accuracy import evaluate
    from paumer.study.speed import SpeedSettings, measure_pictures
    from paumer.study.sweep import describe
    from paumer.study.tradeoff import join

    ways = list(named.values())
    with progress_bar("counting") as update:
        tallies = evaluate(predictor, dataset, ways, places, update)
    images = [predictor.network_inputs(dataset[place].image) for place in places[:4]]
    size = (images[0].shape[2], images[0].shape[3])
    counted = describe(predictor, ways, tallies, size, data=f"{dataset.name} {dataset.split}")
    with progress_bar("timing") as update:
        settings = SpeedSettings(rounds=9)
        speeds = measure_pictures(predictor.network, images, ways, settings, update)
    return {n: join(c, s) for n, c, s in zip(named, counted, speeds, strict=True)}


def _draw_pictures(
    predictor: "Predictor",
    dataset: "Dataset",
    places: list[int],
    named: "dict[str, Inference]",
    out: Path,
) -> list[tuple[str, Path]]:
    """Of a few pictures: itself, and at every point its labels and where patches paused."""
    import numpy as np

    from paumer.media import write_image

    written = []
    for place in places:
        image = dataset[place].image
        results = [predictor.predict_batch([image], way)[0] for way in named.values()]
        upper = np.concatenate([image, *(result.blended() for result in results)], 1)
        lower = [np.full_like(image, 255), *(result.tinted() for result in results)]
        path = out / f"picture-{place}.png"
        write_image(path, np.concatenate([upper, np.concatenate(lower, 1)]))
        written.append((f"picture {place}; {', '.join(named)}", path))
    return written


def _print(title: str, found: "dict[str, Measurement]") -> None:
    say(title)
    table = new_table(*_TITLES)
    for row in _cells(found):
        table.add_row(*row)
    console.print(table)


_TITLES = ("point", "pause", "mIoU, %", "images/s", "speed-up", "multiply-adds")


def _cells(found: "dict[str, Measurement]") -> list[tuple[str, ...]]:
    return [
        (
            name,
            item.how,
            f"{100 * (item.miou or 0):.2f}",
            f"{item.images_per_second:.2f}",
            f"{item.speed_up:.2f}x",
            f"{item.mac_ratio:.2f}x" if item.mac_ratio else "",
        )
        for name, item in found.items()
    ]


def _page(title: str, found: "dict[str, Measurement]", pictures: list[tuple[str, Path]]) -> str:
    """The report: a table, the plot, the pictures."""
    first = next(iter(found.values()))
    head = "".join(f"<th>{escape(text)}</th>" for text in _TITLES)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in _cells(found)
    )
    figures = "".join(
        f'<figure><img src="{escape(path.name)}" alt=""><figcaption>{escape(text)}'
        f"</figcaption></figure>\n"
        for text, path in pictures
    )
    return _HTML.format(
        title=escape(title), head=head, rows=rows, figures=figures, where=escape(first.where or "")
    )


_HTML = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem; text-align: right }}
td:first-child, td:nth-child(2), th:first-child, th:nth-child(2) {{ text-align: left }}
tr + tr {{ border-top: 1px solid #ddd }} img {{ max-width: 100% }} figure {{ margin: 2rem 0 }}
figcaption {{ color: #555; font-size: .9em }}
</style>
<h1>{title}</h1>
<p>One set of weights, several speeds: patches whose class is clear pause and skip the remaining
blocks. Speed: {where}.</p>
<table><tr>{head}</tr>
{rows}</table>
<figure><img src="tradeoff.png" alt="mIoU against images per second"></figure>
<p>Each picture below, without pausing and at every point: above the labels, below where patches
paused, coloured by the block after which they did.</p>
{figures}</html>
"""
