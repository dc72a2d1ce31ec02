"""Every figure of the paper, drawn from measurements. Each is written as PNG and SVG."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from paumer.measurement import Measurement, baseline, miou_of, pareto_front, speed_of
from paumer.study.figures import BLUE, GREY, INK, ORANGE, SERIES, plot, shades, sheet
from paumer.study.illustration import Panel
from paumer.study.uncertainty import EntropyCounts, bin_edges

_DASHES = ("-", "--", "-.", ":", "-", "--")
LINES = tuple(zip((*SERIES, "#56b4e9", "#e69f00"), _DASHES, "os^DvP", strict=True))
"""Colour, line and mark of each series: told apart without colour too."""

TRADEOFF = {"xlabel": "images per second", "ylabel": "mIoU, %"}
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
EVERY = 2
"""Entropies are drawn after every second block."""


def draw_tradeoff(
    series: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str = "",
    reference: Measurement | None = None,
    only_front: bool = False,
) -> None:
    """MIoU against images per second by series; ``reference``, the plain Segmenter, is a star."""
    if len(series) > len(LINES):
        raise ValueError(f"{len(series)} lines cannot be told apart: give at most {len(LINES)}")
    with plot((6.4, 4.0), *_files(path), **TRADEOFF, title=title) as axes:
        for number, (name, items) in enumerate(series.items()):
            shown = sorted(pareto_front(items) if only_front else items, key=speed_of)
            axes.plot(*_points(shown), **_style(number), linewidth=1.4, label=name)
        if reference is not None:
            _mark_reference(axes, reference)
        name, items = next(iter(series.items()))
        _add_speed_up_axis(axes, speed_of(baseline(items)), name if len(series) > 1 else "")
        axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def draw_comparison(
    rows: Sequence[Mapping[str, str]],
    ours: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str = "",
) -> None:
    """Published models by family, and the Pareto fronts of ours; speeds on a logarithmic axis.

    Points have numbers, which the legend explains: names would cover one another.
    """
    marks, numbers = "sD^vP*Xp<>hH", itertools.count(1)
    with plot((7.4, 4.6), *_files(path), **TRADEOFF, title=title) as axes:
        for mark, family in enumerate(dict.fromkeys(row["family"] for row in rows)):
            members = {next(numbers): row for row in rows if row["family"] == family}
            names = [
                f"{number} {', '.join(filter(None, (row['model'], row.get('hardware'))))}"
                for number, row in members.items()
            ]
            x = [float(row["images_per_second"]) for row in members.values()]
            y = [float(row["miou"]) for row in members.values()]
            colour, label = GREY if mark % 2 else "#7a7a7a", "\n".join([family, *names])
            axes.scatter(x, y, marker=marks[mark % len(marks)], color=colour, s=30, label=label)
            for number, point in zip(members, zip(x, y, strict=True), strict=True):
                axes.annotate(str(number), point, (4, 2), textcoords="offset points", fontsize=6.5)
        for number, (name, items) in enumerate(ours.items()):
            front = pareto_front(items)
            hardware = (front[0].where or "").split(",")[0]
            label = f"{name}\n({hardware})" if hardware else name
            axes.plot(*_points(front), **_style(number), label=label)
        axes.set_xscale("log")
        axes.legend(frameon=False, fontsize=6.5, **BESIDE)


def draw_entropies(counts: EntropyCounts, path: Path) -> None:
    """Entropies of right and wrong patches after every second block, as half violins."""
    labels = {"xlabel": "after block", "ylabel": "entropy, nats"}
    with plot((7.2, 3.4), *_files(path), **labels) as axes:
        _violins(axes, counts.sum(1), counts.shape[1])
        _violin_legend(axes)


def draw_class_entropies(counts: EntropyCounts, names: Sequence[str], path: Path) -> None:
    """The same for each class alone, with its number of patches."""
    shown = [number for number in range(len(names)) if counts[:, number].any()]
    columns = 3 if len(shown) <= 12 else 5
    rows = -(-len(shown) // columns)
    with sheet(2.6 * columns, 1.7 * rows + 0.4, *_files(path)) as figure:
        panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
        for axes, number in zip(panels, shown, strict=False):
            _violins(axes, counts[:, number], len(names))
            patches = counts[EVERY - 1 :: EVERY, number][-1].sum()
            axes.set_title(f"{names[number]} ({patches:,})", fontsize=8.5, loc="left")
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        _violin_legend(panels[min(columns, len(shown)) - 1])
        figure.supxlabel("after block", fontsize=9)
        figure.supylabel("entropy, nats", fontsize=9)


def draw_block_counts(
    speeds: Mapping[int, Sequence[float]],
    lines: Mapping[str, Sequence[tuple[int, float]]],
    unpaused: float,
    path: Path,
    title: str = "",
) -> None:
    """Images per second against the number of pausing blocks: a box over all choices of blocks."""
    labels = {"xlabel": "number of pausing blocks", "ylabel": "images per second"}
    colours = {"median": INK, "box": "#7a7a7a", "whisker": GREY, "cap": GREY}
    boxes: dict[str, Any] = {f"{part}props": {"color": colours[part]} for part in colours}
    with plot((6.8, 3.8), *_files(path), **labels, title=title) as axes:
        values = list(speeds.values())
        axes.boxplot(values, positions=list(speeds), widths=0.6, whis=(0, 100), **boxes)
        for number, (name, points) in enumerate(lines.items()):
            axes.plot(*zip(*points, strict=True), **_style(number), label=name)
        axes.axhline(unpaused, color=INK, linewidth=0.9, linestyle=":", label="no pausing")
        axes.set_xticks(list(speeds), [str(number) for number in speeds])
        axes.legend(frameon=False, fontsize=8.5)


def draw_pauses(
    measurements: Sequence[Measurement], pauses: int, path: Path, title: str = ""
) -> None:
    """A line for each first block, coloured from early to late, and the model without pausing.

    The line of one pause is over its ratios, that of several is their Pareto front.
    """
    base = baseline(measurements)
    blocks: dict[int, list[Measurement]] = {}
    for item in sorted(measurements, key=speed_of):
        if len(item.mode.pause.stages) == pauses:
            blocks.setdefault(item.mode.pause.blocks[0], []).append(item)
    with plot((6.6, 4.0), *_files(path), **TRADEOFF, title=title) as axes:
        if pauses > 1:
            shown = [item for items in blocks.values() for item in items]
            axes.scatter(*_points(shown), s=3, color="#d8d8d8", zorder=0)
        for block, colour in zip(sorted(blocks), shades(len(blocks)), strict=True):
            line = pareto_front(blocks[block]) if pauses > 1 else blocks[block]
            style: dict[str, Any] = {"marker": "o", "markersize": 2.5, "linewidth": 1.2}
            axes.plot(*_points(line), color=colour, label=str(block), **style)
        _mark_reference(axes, base, "no pausing")
        _add_speed_up_axis(axes, speed_of(base))
        heading = "first pause\nafter block" if pauses > 1 else "after block"
        axes.legend(frameon=False, fontsize=8, title=heading, title_fontsize=8, **BESIDE)


def draw_method(panels: Sequence[Panel], path: Path, top: float = 1.0) -> None:
    """Images and entropy maps in two rows; maps share one scale from 0 to ``top`` nats."""
    rows, columns = 2, -(-len(panels) // 2)
    height, width, shown = *panels[0].image.shape[:2], None
    with sheet(3.0 * columns, rows * (3.0 * height / width + 0.3), *_files(path)) as figure:
        grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            if panel.image.ndim == 2:
                scale = {"cmap": "viridis", "vmin": 0, "vmax": top}
                shown = axes.imshow(panel.image, **scale, extent=(0, width, height, 0))
            else:
                axes.imshow(panel.image)
            for name, colour in panel.key:
                shade = [level / 255 for level in colour]
                axes.scatter([], [], marker="s", s=28, color=[shade], label=name)
            if panel.key:
                axes.legend(fontsize=7, loc="lower right", framealpha=0.85, borderpad=0.3)
            axes.set_title(panel.title, fontsize=9, loc="left")
        for axes in grid:
            axes.set_axis_off()
        if shown is not None:
            bar = figure.colorbar(shown, ax=list(grid), shrink=0.6, pad=0.01)
            bar.set_label("entropy, nats", fontsize=8.5)


def _violins(axes: Any, counts: Int[np.ndarray, "blocks 2 bins"], classes: int) -> None:
    """Half a violin to the left for right patches, half to the right for wrong ones."""
    blocks, edges = range(EVERY - 1, len(counts), EVERY), bin_edges(classes)
    middle = (edges[:-1] + edges[1:]) / 2
    for x, block in enumerate(blocks):
        for right, colour, side in ((1, BLUE, -1), (0, ORANGE, 1)):
            width = counts[block, right] / max(1, counts[block, right].max())
            end = x + side * 0.42 * width
            axes.fill_betweenx(middle, x, end, color=colour, linewidth=0, alpha=0.9)
    axes.set_xticks(range(len(blocks)), [str(block + 1) for block in blocks])
    axes.set_ylim(0, float(edges[-1]))


def _violin_legend(axes: Any) -> None:
    for colour, name in ((BLUE, "right"), (ORANGE, "wrong")):
        axes.fill_between([], [], color=colour, label=name)
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)


def _mark_reference(axes: Any, item: Measurement, name: str = "Segmenter") -> None:
    axes.axhline(100 * miou_of(item), color=INK, linewidth=0.8, linestyle=":")
    axes.plot(*_points([item]), "*", color=INK, markersize=10, label=name)


def _add_speed_up_axis(axes: Any, unpaused: float, name: str = "") -> None:
    upper = axes.secondary_xaxis("top", functions=(lambda x: x / unpaused, lambda x: x * unpaused))
    upper.tick_params(labelsize=8)
    upper.set_xlabel(f"speed-up over no pausing{f' ({name})' * bool(name)}", fontsize=8.5)


def _points(items: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    """Images per second and mIoU in percent."""
    return [speed_of(item) for item in items], [100 * miou_of(item) for item in items]


def _style(number: int) -> dict[str, Any]:
    colour, line, mark = LINES[number % len(LINES)]
    return {"color": colour, "linestyle": line, "marker": mark, "markersize": 4}


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
