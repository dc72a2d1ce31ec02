import csv

import pytest
import torch

from paumer import Measurement, Mode, build_model, evaluate, load
from paumer.classes import CAMVID
from paumer.cli.main import app
from paumer.inference.points import write_points
from paumer.model import directory


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    build_model("test_vit", "mask", CAMVID.names, image_size=64).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run(model, out):
    words = ["demo", "--model", str(model), "--data", "scenes:6@96x64", "--limit", "3"]
    app([*words, "--threads", "1", "--out", str(out)], result_action="return_value")


@pytest.mark.slow
def test_the_demo_writes_a_report_with_its_images(model, tmp_path, capsys):
    points = {"fast": Measurement(mode=Mode.parse("2:0.5 exit"))}
    write_points(model, points)
    run(model, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    images = sorted(path.name for path in (tmp_path / "out").glob("image-*.png"))
    assert len(images) == 3
    assert all(name in page for name in [*images, "tradeoff.png", "<td>2:0.5 exit</td>"])
    assert (tmp_path / "out" / "tradeoff.png").is_file()
    with (tmp_path / "out" / "demo.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["point"] for row in rows][:2] == ["none", "fast"]
    assert [row["mode"] for row in rows][:2] == ["none", "2:0.5 exit"]
    assert all(float(row["mac_ratio"]) >= 1 for row in rows)
    assert float(rows[0]["speed_up"]) == 1
    found = evaluate(model, "scenes:6@96x64", ["none", "2:0.5 exit"], split="test", limit=3)
    expected = [tally.miou for tally in found.values()]
    assert [float(row["miou"]) for row in rows[:2]] == pytest.approx(expected)
    assert "open" in capsys.readouterr().out


def test_a_built_in_model_goes_by_its_name(model, monkeypatch):
    monkeypatch.setattr(directory, "MODELS", model.parent)
    assert load("model").classes.names == CAMVID.names
