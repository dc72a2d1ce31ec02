"""Figures. The only module that needs matplotlib."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paumer.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paumer.data.checking import Report

INK, BLUE, ORANGE, GREY = "#222222", "#0072b2", "#d55e00", "#b8b8b8"  # Safe for colour-blind eyes.
SERIES = (BLUE, ORANGE, "#009e73", "#cc79a7")


@contextmanager
def sheet(width: float, height: float, *paths: Path) -> "Iterator[Figure]":
    """An empty figure in the house style, bound to no window, written to the paths once drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'paumer[figures]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8.5)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date inside, so that the same figure is the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


@contextmanager
def plot(
    size: tuple[float, float], *paths: Path, xlabel: str, ylabel: str = "", title: str = ""
) -> "Iterator[Axes]":
    """The axes of a figure that has no others, written to the paths once they are drawn."""
    with sheet(*size, *paths) as figure:
        axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(textwrap.fill(title, 90), fontsize=9, loc="left")
        yield axes


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Colours from dark to bright, for things that have an order."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.92 * number / max(1, count - 1)) for number in range(count)]


def draw_speed(measurements: Sequence[Measurement], title: str, path: Path) -> None:
    """Measured speed-up of each mode as a bar, the theoretical one as a mark."""
    names = [str(item.mode).replace(",", "  ") for item in measurements]
    speeds = [item.speed_up or 0.0 for item in measurements]
    theory = [item.mac_ratio or 0.0 for item in measurements]
    colours = [
        GREY if not m.mode.pause else BLUE if s >= 1 else ORANGE
        for m, s in zip(measurements, speeds, strict=True)
    ]
    rows = range(len(names))
    with plot((7.2, 0.34 * len(rows) + 1.5), path, xlabel="speed-up over no pausing") as axes:
        axes.barh(rows, speeds, color=colours, height=0.68)
        label = "theoretical (MACs)"
        axes.scatter(theory, rows, marker="|", s=170, linewidths=2.2, color=INK, label=label)
        for row, speed in zip(rows, speeds, strict=True):
            axes.text(0.02, row, f"{speed:.2f}x", va="center", color="white", fontsize=8.5)
        axes.set_yticks(rows, names)
        axes.invert_yaxis()
        axes.set_xlim(0, max([*speeds, *theory]) * 1.04)
        axes.set_title(title, fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8.5, loc="upper right", bbox_to_anchor=(1.0, 1.04))


def draw_class_shares(reports: "Sequence[Report]", path: Path) -> None:
    """The ratio of labelled pixels that each class covers, one bar for each split."""
    names, height = reports[0].classes, 0.8 / len(reports)
    size = (7.2, 0.22 * len(names) * len(reports) ** 0.5 + 1.2)
    with plot(size, path, xlabel="labelled pixels, % (logarithmic)") as axes:
        for number, report in enumerate(reports):
            total = max(1, sum(report.class_pixels))
            shares = [100 * pixels / total for pixels in report.class_pixels]
            rows = [row + (number - (len(reports) - 1) / 2) * height for row in range(len(names))]
            axes.barh(rows, shares, height=height, color=SERIES[number % 4], label=report.split)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
        axes.set_xlim(0, 100)
        axes.legend(frameon=False, fontsize=8.5)


def draw_training(columns: Mapping[str, tuple[list[int], list[float]]], path: Path) -> None:
    """Loss and validation mIoU over the steps, from steps and values by name."""
    with sheet(7.2, 3.0, path) as figure:
        left, right = figure.subplots(1, 2)
        for name, colour in (("loss", BLUE), ("aux_loss", ORANGE)):
            if name in columns:
                left.plot(*columns[name], color=colour, linewidth=1, label=name.replace("_", " "))
        left.set_yscale("log")
        for number, name in enumerate(name for name in columns if name.startswith("miou ")):
            steps, values = columns[name]
            style = {"marker": "o", "markersize": 3, "color": SERIES[number % 4]}
            right.plot(steps, [100 * value for value in values], label=name[5:], **style)
        for axes, title in ((left, "training loss"), (right, "validation mIoU, %")):
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("step")
            if axes.lines:
                axes.legend(frameon=False, fontsize=8)
