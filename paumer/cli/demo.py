"""`paumer demo`: the whole idea on held-out images, as a page to open."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paumer.cli.console import progress_bar, say, set_threads
from paumer.cli.measure import MEASUREMENT_TITLES, measurement_cells, print_measurements
from paumer.cli.options import DemoOptions
from paumer.disk import replace_file
from paumer.measurement import Measurement, join
from paumer.mode import Mode
from paumer.tables import write_csv

if TYPE_CHECKING:
    from paumer.data.samples import Dataset
    from paumer.inference.predictor import Predictor

DIALS = ("3:0.2", "3:0.4", "3:0.4,5:0.4", "3:0.4,5:0.4,7:0.4", "3:0.6,5:0.6")
"""What is counted and timed beside the model's operating points."""


def demo(options: DemoOptions = DemoOptions()) -> None:  # noqa: B008
    """Segment held-out images at several speeds: a trade-off plot, pause images, a report."""
    from paumer.data.datasets import open_dataset
    from paumer.data.samples import spread
    from paumer.inference.tiles import Inference
    from paumer.loaded import load
    from paumer.study.accuracy import evaluate
    from paumer.study.paper_figures import draw_tradeoff
    from paumer.study.speed import SpeedSettings, time_modes
    from paumer.study.sweep import describe

    set_threads(options.threads)
    predictor = load(options.model, options.device)
    dataset = open_dataset(options.data, "test")
    indices = spread(len(dataset), options.limit)
    depth = predictor.network.backbone.depth
    dials = [text for text in DIALS if Mode.parse(text).pause.blocks[-1] < depth]
    named: dict[Mode, str] = {}
    for name in ("none", *predictor.points, *dials):  # Of equal modes the first name stays.
        named.setdefault(predictor.mode(name), name)
    image, modes = dataset[indices[0]].image, list(named)
    with progress_bar("counting") as update:
        tallies = evaluate(predictor, dataset, modes, Inference(batch=4), indices, update)
    source = f"{dataset.name} {dataset.split}"
    counted = describe(predictor, modes, tallies, image.shape[:2], source)
    with progress_bar("timing") as update:
        speeds = time_modes(predictor, image, modes, SpeedSettings(rounds=9), progress=update)
    items = [join(one, two) for one, two in zip(counted, speeds, strict=True)]
    found = dict(zip(named.values(), items, strict=True))
    # Without pausing both lines begin.
    exits = [item for item in items if item.mode.early_exit or not item.mode.pause]
    lines = {"pausing": [item for item in items if not item.mode.early_exit]}
    if len(exits) > 1:
        lines["pausing with early exit"] = exits
    draw_tradeoff(lines, options.out / "tradeoff")
    write_csv(options.out / "demo.csv", [{"point": n, **m.to_json()} for n, m in found.items()])
    some = indices[:: max(1, len(indices) // 3)][:3]
    shown = {name: item.mode for name, item in found.items() if name not in dials}
    images = _draw_images(predictor, dataset, some, shown, options.out)
    title = f"{options.model} on {len(indices)} held-out images of {dataset.name}"
    report = options.out / "report.html"
    replace_file(report, _page(title, found, images).encode())
    say(title)
    print_measurements(found)
    say(f"open {report}")


def _draw_images(
    predictor: "Predictor",
    dataset: "Dataset",
    indices: list[int],
    named: dict[str, Mode],
    out: Path,
) -> list[tuple[str, Path]]:
    """Of a few images: itself, and at every point its labels and where patches paused."""
    import numpy as np

    from paumer.drawing import write_image

    written = []
    for place in indices:
        image = dataset[place].image
        results = [predictor.predict(image, mode) for mode in named.values()]
        upper = np.concatenate([image, *(result.blended() for result in results)], 1)
        lower = [np.full_like(image, 255), *(result.tinted() for result in results)]
        path = out / f"image-{place}.png"
        write_image(path, np.concatenate([upper, np.concatenate(lower, 1)]))
        written.append((f"image {place}; {', '.join(named)}", path))
    return written


def _page(title: str, found: dict[str, Measurement], images: list[tuple[str, Path]]) -> str:
    """The report: a table, the plot, the images."""
    first = next(iter(found.values()))
    head = "".join(f"<th>{escape(text)}</th>" for text in ("point", *MEASUREMENT_TITLES))
    cells = [(name, *measurement_cells(item)) for name, item in found.items()]
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in cells
    )
    figures = "".join(
        f'<figure><img src="{escape(path.name)}" alt=""><figcaption>{escape(text)}'
        f"</figcaption></figure>\n"
        for text, path in images
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
<p>One set of weights, several speeds: easy patches pause and skip the remaining
blocks. Speed: {where}.</p>
<table><tr>{head}</tr>
{rows}</table>
<figure><img src="tradeoff.png" alt="mIoU against images per second"></figure>
<p>Each image below, without pausing and at every point: above the labels, below where patches
paused, coloured by the block after which they did.</p>
{figures}</html>
"""
