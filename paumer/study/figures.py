"""Figures. The only module that needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paumer.study.tradeoff import Measurement

INK, BLUE, ORANGE, GREY = "#222222", "#0072b2", "#d55e00", "#b8b8b8"  # Safe for colour-blind eyes.


def draw_speed(measurements: Sequence[Measurement], title: str, path: Path) -> None:
    """Measured speed-up of each configuration as a bar, what multiply-adds promise as a mark."""
    figure = new_figure(7.2, 0.34 * len(measurements) + 1.5)
    axes = figure.add_subplot()
    names = [str(item.pause).replace(",", "  ") for item in measurements]
    speeds = [item.speed_up or 0.0 for item in measurements]
    promised = [item.mac_ratio or 0.0 for item in measurements]
    colours = [
        GREY if not m.pause else BLUE if s >= 1 else ORANGE
        for m, s in zip(measurements, speeds, strict=True)
    ]
    rows = range(len(names))
    axes.barh(rows, speeds, color=colours, height=0.68)
    axes.scatter(
        promised, rows, marker="|", s=170, linewidths=2.2, color=INK, label="multiply-adds promise"
    )
    for row, speed in zip(rows, speeds, strict=True):
        axes.text(0.02, row, f"{speed:.2f}x", va="center", color="white", fontsize=8.5)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*speeds, *promised]) * 1.04)
    axes.set_xlabel("speed-up over no pausing")
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right", bbox_to_anchor=(1.0, 1.04))
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Any:
    """An empty figure in the house style, bound to no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'paumer[figures]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure; the suffix says the format."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
