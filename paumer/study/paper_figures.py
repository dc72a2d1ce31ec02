"""Every figure of the paper, drawn from measurements. Each is written as PNG and SVG."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from paumer.measurement import Measurement, baseline, pareto_front
from paumer.study.figures import BLUE, GREY, INK, ORANGE, new_figure, save_figure, shades
from paumer.study.illustration import Panel
from paumer.study.uncertainty import EntropyCounts

LINES = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    ("#009e73", "-.", "^"),
    ("#cc79a7", ":", "D"),
    ("#56b4e9", "-", "v"),
    ("#e69f00", "--", "P"),
)
"""Colour, line and mark of each series: told apart without colour too."""


def draw_tradeoff(
    series: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str = "",
    reference: Measurement | None = None,
    only_front: bool = False,
) -> None:
    """MIoU against images per second, a line for each series.

    ``reference`` is the plain Segmenter: a star, and a line at its mIoU.
    """
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    if len(series) > len(LINES):
        raise ValueError(f"{len(series)} lines cannot be told apart: give at most {len(LINES)}")
    for number, (name, items) in enumerate(series.items()):
        colour, line, mark = LINES[number % len(LINES)]
        shown = sorted(pareto_front(items) if only_front else items, key=_speed)
        x, y = [_speed(m) for m in shown], [_points(m) for m in shown]
        axes.plot(x, y, line, color=colour, marker=mark, markersize=4, linewidth=1.4, label=name)
    if reference is not None:
        _mark_reference(axes, reference)
    name, items = next(iter(series.items()))
    _add_speed_up_axis(axes, _speed(baseline(items)), name if len(series) > 1 else "")
    axes.set_xlabel("images per second")
    axes.set_ylabel("mIoU, %")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    _set_title(axes, title)
    _save(figure, path)


def draw_comparison(
    rows: Sequence[Mapping[str, str]],
    ours: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str = "",
) -> None:
    """Published models by family, and the skylines of ours; speeds on a logarithmic axis.

    Points carry numbers, which the legend tells: names would cover one another.
    """
    figure = new_figure(7.4, 4.6)
    axes = figure.add_subplot()
    marks = "sD^vP*Xp<>hH"
    families = list(dict.fromkeys(row["family"] for row in rows))
    count = 0
    for number, family in enumerate(families):
        some = [row for row in rows if row["family"] == family]
        names = [", ".join(filter(None, (row["model"], row.get("hardware")))) for row in some]
        axes.scatter(
            [float(row["images_per_second"]) for row in some],
            [float(row["miou"]) for row in some],
            marker=marks[number % len(marks)],
            color=GREY if number % 2 else "#7a7a7a",
            s=30,
            label="\n".join([family, *(f"{n} {told}" for n, told in enumerate(names, count + 1))]),
        )
        for row in some:
            count += 1
            place = float(row["images_per_second"]), float(row["miou"])
            axes.annotate(str(count), place, (4, 2), textcoords="offset points", fontsize=6.5)
    for number, (name, items) in enumerate(ours.items()):
        colour, line, mark = LINES[number % len(LINES)]
        front = pareto_front(items)
        x, y = [_speed(m) for m in front], [_points(m) for m in front]
        hardware = (front[0].where or "").split(",")[0]
        label = f"{name}\n({hardware})" if hardware else name
        axes.plot(x, y, line, color=colour, marker=mark, markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("images per second")
    axes.set_ylabel("mIoU, %")
    axes.legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _set_title(axes, title)
    _save(figure, path)


def draw_entropies(counts: EntropyCounts, path: Path, every: int = 2) -> None:
    """Entropies of right and wrong patches after every second block, as half violins."""
    figure = new_figure(7.2, 3.4)
    axes = figure.add_subplot()
    blocks = range(every - 1, len(counts.counts), every)
    _violins(axes, counts.counts.sum(1)[list(blocks)], counts.edges)
    axes.set_xticks(range(len(blocks)), [str(block + 1) for block in blocks])
    axes.set_xlabel("after block")
    axes.set_ylabel("entropy, nats")
    axes.set_ylim(0, float(counts.edges[-1]))
    _violin_legend(axes)
    _save(figure, path)


def draw_class_entropies(
    counts: EntropyCounts, names: Sequence[str], path: Path, every: int = 2
) -> None:
    """The same for each class alone, with its number of patches."""
    shown = [place for place in range(len(names)) if counts.counts[:, place].any()]
    columns = 3 if len(shown) <= 12 else 5
    rows = -(-len(shown) // columns)
    figure = new_figure(2.6 * columns, 1.7 * rows + 0.4)
    panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
    blocks = list(range(every - 1, len(counts.counts), every))
    for axes, place in zip(panels, shown, strict=False):
        own = counts.counts[blocks, place]
        _violins(axes, own, counts.edges)
        axes.set_title(f"{names[place]} ({own[-1].sum():,})", fontsize=8.5, loc="left")
        axes.set_xticks(range(len(blocks)), [str(block + 1) for block in blocks])
        axes.set_ylim(0, float(counts.edges[-1]))
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    _violin_legend(panels[min(columns, len(shown)) - 1])
    figure.supxlabel("after block", fontsize=9)
    figure.supylabel("entropy, nats", fontsize=9)
    _save(figure, path)


def draw_block_counts(
    speeds: Mapping[int, Sequence[float]],
    lines: Mapping[str, Sequence[tuple[int, float]]],
    unpaused: float,
    path: Path,
    title: str = "",
) -> None:
    """Images per second against the number of pausing blocks: a box over all choices of blocks."""
    figure = new_figure(6.8, 3.8)
    axes = figure.add_subplot()
    axes.boxplot(
        [list(speeds[number]) for number in speeds],
        positions=list(speeds),
        widths=0.6,
        whis=(0, 100),
        medianprops={"color": INK},
        boxprops={"color": "#7a7a7a"},
        whiskerprops={"color": GREY},
        capprops={"color": GREY},
    )
    for number, (name, points) in enumerate(lines.items()):
        colour, line, mark = LINES[number % len(LINES)]
        axes.plot(
            [k for k, _ in points],
            [speed for _, speed in points],
            line,
            marker=mark,
            markersize=4,
            color=colour,
            label=name,
        )
    axes.axhline(unpaused, color=INK, linewidth=0.9, linestyle=":", label="no pausing")
    axes.set_xticks(list(speeds), [str(number) for number in speeds])
    axes.set_xlabel("number of pausing blocks")
    axes.set_ylabel("images per second")
    axes.legend(frameon=False, fontsize=8.5)
    _set_title(axes, title)
    _save(figure, path)


def draw_one_pause(measurements: Sequence[Measurement], path: Path, title: str = "") -> None:
    """One pause: a line for each block over its shares, coloured from early to late."""
    figure = new_figure(6.6, 4.0)
    single = [item for item in measurements if len(item.mode.pause.stages) == 1]
    lines = {block: sorted(own, key=_speed) for block, own in _by_first_block(single).items()}
    axes = figure.add_subplot()
    _set_title(axes, title)
    _draw_blocks(axes, lines, baseline(measurements), "after block")
    _save(figure, path)


def draw_two_pauses(measurements: Sequence[Measurement], path: Path, title: str = "") -> None:
    """Two pauses: the skyline of each first block, over all that was measured in grey."""
    figure = new_figure(6.6, 4.0)
    axes = figure.add_subplot()
    _set_title(axes, title)
    double = [item for item in measurements if len(item.mode.pause.stages) == 2]
    axes.scatter(
        [_speed(m) for m in double], [_points(m) for m in double], s=3, color="#d8d8d8", zorder=0
    )
    lines = {block: pareto_front(own) for block, own in _by_first_block(double).items()}
    _draw_blocks(axes, lines, baseline(measurements), "first pause\nafter block")
    _save(figure, path)


def _set_title(axes: Any, title: str) -> None:
    """A title in as many lines as it needs."""
    axes.set_title(textwrap.fill(title, 90), fontsize=9, loc="left")


def _by_first_block(measurements: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    blocks = sorted({item.mode.pause.blocks[0] for item in measurements})
    return {block: [m for m in measurements if m.mode.pause.blocks[0] == block] for block in blocks}


def _draw_blocks(
    axes: Any, lines: Mapping[int, Sequence[Measurement]], base: Measurement, legend: str
) -> None:
    """A line for each block, coloured from early to late, and the model without pausing."""
    for (block, items), colour in zip(lines.items(), shades(len(lines)), strict=True):
        x, y = [_speed(m) for m in items], [_points(m) for m in items]
        axes.plot(x, y, color=colour, marker="o", markersize=2.5, linewidth=1.2, label=str(block))
    _mark_reference(axes, base, "no pausing")
    _add_speed_up_axis(axes, _speed(base))
    axes.set_xlabel("images per second")
    axes.set_ylabel("mIoU, %")
    axes.legend(
        frameon=False,
        fontsize=8,
        title=legend,
        title_fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )


def draw_method(panels: Sequence[Panel], path: Path, top: float = 1.0) -> None:
    """Images and entropy maps in two rows; maps share one scale from 0 to ``top`` nats."""
    rows, columns = 2, -(-len(panels) // 2)
    first = panels[0].image
    figure = new_figure(3.0 * columns, rows * (3.0 * first.shape[0] / first.shape[1] + 0.3))
    shown = None
    grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        if panel.image.ndim == 2:
            extent = (0, first.shape[1], first.shape[0], 0)
            shown = axes.imshow(panel.image, cmap="viridis", vmin=0, vmax=top, extent=extent)
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
    _save(figure, path)


def _violins(
    axes: Any, counts: Int[np.ndarray, "blocks 2 bins"], edges: Float[np.ndarray, " edges"]
) -> None:
    """Half a violin to the left for right patches, half to the right for wrong ones."""
    middle = (edges[:-1] + edges[1:]) / 2
    for place, both in enumerate(counts):
        for right, colour, side in ((1, BLUE, -1), (0, ORANGE, 1)):
            share = both[right] / max(1, both[right].max())
            axes.fill_betweenx(
                middle, place, place + side * 0.42 * share, color=colour, linewidth=0, alpha=0.9
            )


def _violin_legend(axes: Any) -> None:
    for colour, name in ((BLUE, "right"), (ORANGE, "wrong")):
        axes.fill_between([], [], color=colour, label=name)
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)


def _mark_reference(axes: Any, item: Measurement, name: str = "Segmenter") -> None:
    axes.axhline(_points(item), color=INK, linewidth=0.8, linestyle=":")
    axes.plot([_speed(item)], [_points(item)], "*", color=INK, markersize=10, label=name)


def _add_speed_up_axis(axes: Any, unpaused: float, name: str = "") -> None:
    upper = axes.secondary_xaxis("top", functions=(lambda x: x / unpaused, lambda x: x * unpaused))
    upper.tick_params(labelsize=8)
    upper.set_xlabel(f"speed-up over no pausing{f' ({name})' * bool(name)}", fontsize=8.5)


def _speed(item: Measurement) -> float:
    assert item.images_per_second is not None
    return item.images_per_second


def _points(item: Measurement) -> float:
    assert item.miou is not None
    return 100 * item.miou


def _save(figure: Any, path: Path) -> None:
    save_figure(figure, *(path.with_name(path.name + suffix) for suffix in (".png", ".svg")))
