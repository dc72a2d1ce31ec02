import pytest
from PIL import Image

from paumer import Measurement, Mode
from paumer.study.figures import draw_speed


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_speed_figure_is_drawn(tmp_path, suffix):
    rows = [
        Measurement(mode=Mode.parse(text), speed_up=speed, mac_ratio=promise)
        for text, speed, promise in (
            ("none", 1.0, 1.0),
            ("3:0.4", 1.4, 1.5),
            ("9:0.1 exit", 0.98, 1.01),
        )
    ]
    path = tmp_path / "new" / f"speed.{suffix}"
    draw_speed(rows, "a title", path)
    assert path.stat().st_size > 1000
    if suffix == "png":
        colours = {colour for _, colour in Image.open(path).convert("RGB").getcolors(100_000)}
        assert {(0, 114, 178), (213, 94, 0), (184, 184, 184)} <= colours
