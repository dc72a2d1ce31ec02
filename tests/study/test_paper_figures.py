from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from paumer import PAPER_CONFIGS, Measurement, Mode, PauseConfig
from paumer.study.grids import count, one, two
from paumer.study.illustration import illustrate
from paumer.study.paper_figures import (
    draw_block_counts,
    draw_class_entropies,
    draw_comparison,
    draw_entropies,
    draw_method,
    draw_pauses,
    draw_tradeoff,
)
from paumer.study.uncertainty import BINS, bin_edges


def imagined(pauses, bias=0.0):
    """Measurements in which pausing is faster and worse."""
    found = []
    for pause in [PauseConfig(), *pauses]:
        work = sum(share * (12 - block) for block, share in pause.stages)
        miou = 0.7 - (work / 40) ** 2 - bias * work
        mode = Mode(pause=pause)
        found.append(Measurement(mode=mode, images_per_second=10 + work, miou=miou))
    return found


def entropies():
    return np.random.default_rng(0).integers(0, 50, (12, 4, 2, BINS))


def paths_in(path):
    """How many paths an SVG has."""
    return len(list(ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")))


DRAWINGS = {
    "tradeoff": lambda path: draw_tradeoff(
        {"entropy": imagined(PAPER_CONFIGS), "random": imagined(PAPER_CONFIGS, 0.01)},
        path,
        "a title",
        imagined([])[0],
    ),
    "skylines": lambda path: draw_tradeoff(
        {"entropy": imagined(PAPER_CONFIGS)}, path, only_front=True
    ),
    "comparison": lambda path: draw_comparison(
        [
            {"model": "a1", "family": "A", "miou": "40.1", "images_per_second": "12"},
            {"model": "b1", "family": "B", "miou": "50", "images_per_second": "120"},
        ],
        {"ours": imagined(PAPER_CONFIGS)},
        path,
        "a title",
    ),
    "entropies": lambda path: draw_entropies(entropies(), path),
    "classes": lambda path: draw_class_entropies(entropies(), "abcd", path),
    "blocks": lambda path: draw_block_counts(
        {k: [m.images_per_second for m in imagined(count(5, most=k))] for k in (1, 2, 3)},
        {"3, 5, 7": [(1, 12.0), (2, 13.0), (3, 14.0)]},
        10.0,
        path,
        "a title",
    ),
    "one": lambda path: draw_pauses(imagined(one(12)), 1, path),
    "two": lambda path: draw_pauses(imagined(two(12, 3, 5)), 2, path),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWINGS)
def test_each_figure_is_drawn_as_image_and_as_vectors(name, tmp_path):
    DRAWINGS[name](tmp_path / name)
    with Image.open(tmp_path / f"{name}.png") as image:
        colours = image.convert("RGB").getcolors(1 << 24)
        assert min(image.size) > 300
    assert len(colours) > 20
    assert paths_in(tmp_path / f"{name}.svg") > 20


def test_the_illustration_tells_the_story(predictor, tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    panels = illustrate(predictor, image, Mode.parse("2:0.25,4:0.5"))
    titles = [panel.title for panel in panels]
    assert titles[:2] == ["image", "entropy after block 2"]
    assert titles[2] == "paused so far: 25%"
    assert titles[4] == "paused so far: 62%"
    assert titles[5:] == ["through all blocks: 38%", "result"]
    maps = [panel.image for panel in panels if panel.image.ndim == 2]
    assert [int(np.isnan(one).sum()) for one in maps] == [0, 6]
    changed = (panels[2].image != image).any(-1).mean()
    assert 0.2 < changed <= 0.25
    draw_method(panels, tmp_path / "method")
    assert (tmp_path / "method.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="nothing pauses"):
        illustrate(predictor, image, Mode())


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, as they are before they are saved."""
    caught = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, *_, **__: caught.append(figure)
    )
    return caught


def test_lines_hold_the_measurements(drawn, tmp_path):
    series = {"entropy": imagined(PAPER_CONFIGS), "random": imagined(PAPER_CONFIGS, 0.01)}
    draw_tradeoff(series, tmp_path / "x")
    (axes,) = drawn[0].axes
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    for name, items in series.items():
        expected = sorted((m.images_per_second, 100 * m.miou) for m in items)
        assert np.allclose(lines[name], expected)


def test_violins_are_as_wide_as_the_counts(drawn, tmp_path):
    counts = np.zeros((12, 4, 2, BINS), np.int64)
    counts[:, 0, 1, 3] = 10
    counts[:, 0, 1, 40] = 5
    draw_entropies(counts, tmp_path / "x")
    (axes,) = drawn[0].axes
    right = axes.collections[0].get_paths()[0].vertices
    edges = bin_edges(4)
    middle = (edges[3] + edges[4]) / 2
    widths = [abs(x) for x, y in right if abs(y - middle) < 1e-9]
    half = (edges[40] + edges[41]) / 2
    assert max(widths) == pytest.approx(0.42)
    assert max(abs(x) for x, y in right if abs(y - half) < 1e-9) == pytest.approx(0.21)


def test_too_many_lines_are_refused(tmp_path):
    series = {str(number): imagined([]) for number in range(7)}
    with pytest.raises(ValueError, match="cannot be told apart"):
        draw_tradeoff(series, tmp_path / "x")
