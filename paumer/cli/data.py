"""`paumer data init` and `paumer check-data`: folders of images, described and checked."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App

from paumer.cli.console import progress_bar, say
from paumer.tables import write_json
from paumer.training.options import Several

data = App(name="data", help="Describe folders of images so that every command can read them.")


@data.command
def init(folder: Path, /) -> None:
    """Recognise the layout of a folder and write its data.yaml and a sheet of samples.

    Nothing is overwritten, and what was assumed is printed and noted in the file.

    Args:
        folder: The folder with images and labels.
    """
    from paumer.data.recognise import SHEET, init_data

    layout, datasets = init_data(folder)
    say(f"{folder}: {layout.title}")
    for note in layout.assumed:
        say(f"assumed: {note}")
    for dataset in datasets:
        problems = f", {len(dataset.problems)} problems" if dataset.problems else ""
        say(f"{dataset.split}: {len(dataset):,} images{problems}")
    names = datasets[0].class_set.names
    say(f"{len(names)} classes: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}")
    written = ["data.yaml", *layout.lists, *([SHEET] if (folder / SHEET).exists() else [])]
    say(f"wrote {', '.join(written)} to {folder}")
    say(f"check everything with: paumer check-data {folder / 'data.yaml'}")


def check_data(
    data: str,
    /,
    *,
    out: Path | None = None,
    splits: Annotated[tuple[str, ...] | None, Several] = None,
) -> None:
    """Read a whole data set and report what is wrong with it. Nothing is changed.

    The exit code is 0 if nothing is wrong, 1 if something is, 2 if it cannot be opened at all.

    Args:
        data: A data.yaml, or camvid:DIR, cityscapes:DIR, ade20k:DIR, voc:DIR, scenes, sample.
        out: Folder for the report, a plot of class ratios and a sheet of samples.
        splits: Splits to read, such as train val (default: all there are).
    """
    from paumer.data.checking import check_splits, list_splits, sample_sheet

    datasets = list_splits(data, splits)
    with progress_bar("reading") as update:
        reports = check_splits(datasets, progress=lambda _, done, total: update(done, total))
    say("\n\n".join(report.to_text() for report in reports))
    if out:
        from paumer.drawing import write_image
        from paumer.study.figures import draw_class_shares

        written = ["report.json", "class_shares.png"]
        write_json(out / "report.json", [report.to_json() for report in reports])
        draw_class_shares(reports, out / "class_shares.png")
        sheets = (sample_sheet(dataset) for dataset in datasets)
        if (sheet := next((sheet for sheet in sheets if sheet is not None), None)) is not None:
            write_image(out / "samples.png", sheet)
            written.append("samples.png")
        say(f"wrote {', '.join(written)} to {out}")
    if any(report.problems for report in reports):
        sys.exit(1)
