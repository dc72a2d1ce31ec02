"""Operating points: named modes in a model directory, with what was measured of each."""

import json

import numpy as np
import pytest
import torch

from paumer import Measurement, Mode, build_model, load
from paumer.inference.points import check_point_name, read_points, write_points
from paumer.mode import REMOVED_CRITERIA, UNPAUSED

FILE = "operating_points.json"


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_model("test_vit", "mask", ("a", "b", "c"), image_size=32)


@pytest.fixture
def directory(network, tmp_path):
    network.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_directory_without_points_has_none(tmp_path):
    assert read_points(tmp_path) == {}


def test_points_come_back_as_they_were_written(tmp_path):
    points = {
        "fast": Measurement(mode=Mode.parse("2:0.5 exit protect=a%20b"), speed_up=1.5, miou=0.6),
        "small": Measurement(mode=Mode.parse("none size=144"), images_per_second=9.0, data="x"),
    }
    write_points(tmp_path, points)
    assert read_points(tmp_path) == points
    assert json.loads((tmp_path / FILE).read_text())["fast"]["mode"] == "2:0.5 exit protect=a%20b"


def test_a_point_that_gains_is_kept(tmp_path):
    """A mode may be more accurate than none, under every condition."""
    write_points(tmp_path, {"better": Measurement(mode=Mode.parse("3:0.2"), worst_drop=-0.01)})
    assert read_points(tmp_path)["better"].worst_drop == -0.01


def test_points_of_other_names_stay(tmp_path):
    fast, faster = (Measurement(mode=Mode.parse(text)) for text in ("2:0.5", "2:0.8"))
    write_points(tmp_path, {"whole": Measurement(mode=UNPAUSED), "fast": fast})
    (tmp_path / f".{FILE}.0123abcd.new").write_text("of a killed process")
    write_points(tmp_path, {"fast": faster})
    assert read_points(tmp_path) == {"whole": Measurement(mode=UNPAUSED), "fast": faster}
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_a_loaded_model_runs_by_the_name_of_a_point(directory):
    (directory / FILE).write_text(json.dumps({"fast": {"mode": "2:0.5 exit"}}))
    model = load(directory)
    assert str(model.mode("fast")) == "2:0.5 exit"
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    fast = model.predict(image, "fast")
    assert fast.mode == Mode.parse("2:0.5 exit")
    assert np.array_equal(fast.labels, model.predict(image, "2:0.5 exit").labels)
    with pytest.raises(ValueError, match="operating points of this model: fast"):
        model.mode("slow")


def test_points_of_0_1_are_read(directory):
    values = {
        "fast": {"pause": "2:0.5", "criterion": "neighbours", "early_exit": True},
        "whole": {"pause": "none", "criterion": "neighbours"},
    }
    (directory / FILE).write_text(json.dumps(values))
    model = load(directory)
    assert model.modes == {"fast": Mode.parse("2:0.5 exit by=neighbours"), "whole": UNPAUSED}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "list"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ('{"fast": ' * 10_000, "nested too deeply"),
        (" " * 2**20 + "{}", "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(directory, text, message):
    (directory / FILE).write_text(text)
    with pytest.raises(ValueError, match=rf'cannot read ".*{FILE}": .*{message}'):
        load(directory)
    with pytest.raises(ValueError, match="cannot read"):
        write_points(directory, {"fast": Measurement(mode=UNPAUSED)})
    assert (directory / FILE).read_text() == text


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"mode": "2:0.5 by=luck"}, 'no criterion "luck"'),
        ({"pause": "2:0.5", "criterion": "luck"}, 'no criterion "luck"'),
        *(
            ({"pause": "2:0.5", "criterion": name}, f'"{name}" was removed')
            for name in REMOVED_CRITERIA
        ),
        (3, ""),
        ({}, "pause"),
        ({"mode": "none", "luck": 1}, "luck"),
        ({"mode": "2:0.5 by=random"}, "by=random is for evaluate and sweep alone"),
        ({"mode": "2:0.5 by=oracle"}, "by=oracle is for evaluate and sweep alone"),
        ({"mode": "9:0.5"}, "cannot pause after block 9: this backbone has 6 blocks"),
        ({"mode": "2:0.5 protect=d"}, 'no class "d" to protect'),
    ],
)
def test_a_point_that_cannot_run_is_left_out(directory, point, message):
    values = {"odd": point, "fast": {"mode": "2:0.5 size=48"}}
    (directory / FILE).write_text(json.dumps(values))
    with pytest.warns(UserWarning, match=rf'"odd" of ".*{FILE}": .*{message}'):
        model = load(directory)
    assert model.modes == {"fast": Mode.parse("2:0.5 size=48")}
    # It may be of another version: writing others leaves it as it is.
    write_points(directory, {"slow": Measurement(mode=UNPAUSED)})
    written = json.loads((directory / FILE).read_text())
    assert written.pop("slow")["mode"] == "none"
    assert written == values


@pytest.mark.parametrize(
    "values",
    [
        *({name: "high"} for name in ("miou", "images_per_second", "images", "gmacs")),
        {"miou": float("nan")},
        {"latency_ms": float("inf")},
        {"speed_up": -1},
        {"images_per_second": 0},
        {"images": 0.5},
        {"images": 10**400},
        {"miou": [0.5]},
        {"data": 5},
        {"data": {}},
        {"predicted": "no"},
        {"mode": 5},
        {"mode": ["none"]},
        {"mode": "x" * 10**5},
        {"x" * 10**5: 1},
    ],
    ids=lambda values: f"{values!s:.40}",
)
def test_a_point_of_other_values_is_left_out(directory, values):
    points = {"odd": {"mode": "2:0.5", **values}, "fast": {"mode": "2:0.5", "miou": 1}}
    (directory / FILE).write_text(json.dumps(points))
    with pytest.warns(Warning, match='"odd"') as caught:
        found = read_points(directory)
    assert list(found) == ["fast"]
    assert len(str(caught[0].message)) < 1000


@pytest.mark.parametrize("name", ["none", "auto", "3:0.4", "none exit", " ", "3:0.4" * 10**5])
def test_a_point_that_would_hide_a_mode_is_left_out(directory, name):
    (directory / FILE).write_text(json.dumps({name: {"mode": "2:0.5"}}))
    with pytest.warns(UserWarning, match="cannot be called") as caught:
        model = load(directory)
    assert model.points == {}
    assert str(model.mode("none")) == "none"
    assert len(str(caught[0].message)) < 1000


@pytest.mark.parametrize("name", ["none", "paper", "auto", "", "3:0.4", "3:0.4 exit"])
def test_points_cannot_hide_modes(name, tmp_path):
    with pytest.raises(ValueError, match=f'an operating point cannot be called "{name}"'):
        check_point_name(name)
    with pytest.raises(ValueError, match="cannot be called"):
        write_points(
            tmp_path, {"fast": Measurement(mode=UNPAUSED), name: Measurement(mode=UNPAUSED)}
        )
    assert not (tmp_path / FILE).exists()
