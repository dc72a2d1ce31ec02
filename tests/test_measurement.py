"""What was measured of a mode: one line of JSON, joined, compared, and the Pareto front."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.measurement import (
    Measurement,
    baseline,
    join,
    miou_of,
    pareto_front,
    per_image,
    read_measurements,
    speed_of,
    timed,
)
from paumer.mode import REMOVED_CRITERIA, UNPAUSED, Mode

MODES = ("none", "none size=288", "3:0.2,5:0.4", "3:<0.4 exit by=neighbours protect=a%20b size=288")


def point(mode, speed, miou, **known):
    return Measurement(mode=Mode.parse(mode), images_per_second=speed, miou=miou, **known)


class TestJson:
    @pytest.mark.parametrize("text", MODES)
    def test_a_measurement_survives_json(self, text):
        one = Measurement(mode=Mode.parse(text), speed_up=1.3, miou=0.7, engine="onnx", images=3)
        line = json.dumps(one.to_json())
        assert json.loads(line)["mode"] == text
        assert "latency_ms" not in json.loads(line)
        assert Measurement.from_json(json.loads(line)) == one

    @pytest.mark.parametrize(
        ("values", "mode"),
        [
            ({"pause": "3:0.2,5:0.4"}, "3:0.2,5:0.4"),
            ({"pause": "none", "criterion": "neighbours", "early_exit": False}, "none"),
            (
                {"pause": "9:0.9", "criterion": "neighbours", "early_exit": True},
                "9:0.9 exit by=neighbours",
            ),
            ({"pause": "5:0.4", "criterion": "random", "early_exit": False}, "5:0.4 by=random"),
        ],
    )
    def test_what_0_1_wrote_is_read(self, values, mode):
        known = {"engine": "torch", "predicted": False, "speed_up": 1.5, "miou": 0.6}
        read = Measurement.from_json({**values, **known, "when": "2026-11-17T09:14:03+00:00"})
        assert read == Measurement(
            mode=Mode.parse(mode), speed_up=1.5, miou=0.6, when="2026-11-17T09:14:03+00:00"
        )
        assert Measurement.from_json(read.to_json()) == read

    @pytest.mark.parametrize("name", REMOVED_CRITERIA)
    def test_a_removed_criterion_is_refused_by_its_name(self, name, tmp_path):
        values = {"pause": "3:0.4", "criterion": name, "miou": 0.6}
        with pytest.raises(ValueError, match=rf'the criterion "{name}" was removed in 0\.2'):
            Measurement.from_json(values)
        file = tmp_path / "sweep.jsonl"
        file.write_text(json.dumps({"mode": "none"}) + "\n" + json.dumps(values) + "\n")
        with pytest.raises(
            ValueError, match=rf'line 2 of ".*sweep\.jsonl": .*"{name}" was removed'
        ):
            read_measurements(file)

    def test_lines_of_a_file_or_of_a_folder_are_read(self, tmp_path):
        kept = [point("none", 10.0, 0.7), point("3:0.4 exit", 15.0, 0.69)]
        text = "".join(json.dumps(item.to_json()) + "\n" for item in kept)
        (tmp_path / "sweep.jsonl").write_text(text)
        assert read_measurements(tmp_path) == kept
        assert read_measurements(tmp_path / "sweep.jsonl") == kept
        with pytest.raises(FileNotFoundError, match=r"other\.jsonl.*run paumer sweep first"):
            read_measurements(tmp_path / "other.jsonl")

    @pytest.mark.parametrize(
        "line", ["{", "3", "{}", '{"mode": 3}', '{"mode": "3:2"}', '{"mode": "none", "luck": 1}']
    )
    def test_a_line_that_cannot_be_read_is_named(self, tmp_path, line):
        (tmp_path / "sweep.jsonl").write_text(f'{{"mode": "none"}}\n{line}\n')
        with pytest.raises(ValueError, match=r'cannot read line 2 of ".*sweep\.jsonl"'):
            read_measurements(tmp_path)


class TestJoin:
    def test_accuracy_of_the_one_and_speed_of_the_other(self):
        mode = Mode.parse("3:0.4 exit")
        accuracy = Measurement(
            mode=mode, miou=0.7, miou_low=0.6, images=9, data="a val", gmacs=3.0, speed_up=9.0
        )
        speed = Measurement(
            mode=mode,
            engine="onnx",
            speed_up=1.5,
            latency_ms=20.0,
            miou=0.1,
            data="b",
            where="here",
        )
        assert join(accuracy, speed) == Measurement(
            mode=mode,
            engine="onnx",
            speed_up=1.5,
            latency_ms=20.0,
            where="here",
            gmacs=3.0,
            miou=0.7,
            miou_low=0.6,
            images=9,
            data="a val",
        )

    @pytest.mark.parametrize("other", ["3:0.4", "3:0.4 exit by=neighbours", "3:0.4 exit size=288"])
    def test_only_the_same_mode_can_be_joined(self, other):
        one, two = (Measurement(mode=Mode.parse(text)) for text in ("3:0.4 exit", other))
        with pytest.raises(ValueError) as raised:
            join(one, two)
        assert str(raised.value) == f'"3:0.4 exit" and "{other}" are not the same mode'

    def test_the_speed_of_images_of_several_windows(self):
        one = point("none", 12.0, 0.7, latency_ms=80.0, latency_ms_p95=90.0, speed_up=1.0)
        assert per_image(one, 3, 3) == point(
            "none", 4.0, 0.7, latency_ms=240.0, latency_ms_p95=270.0, speed_up=1.0
        )
        bare = Measurement(mode=UNPAUSED)
        assert per_image(bare, 3, 3) == bare


values = st.floats(0.1, 1, allow_nan=False).map(lambda v: round(v, 2))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=30))
def test_no_member_of_the_pareto_front_is_dominated_and_every_other_point_is(pairs):
    points = [point("none", speed, miou) for speed, miou in pairs]
    best = pareto_front(points)

    def beaten(one):
        return any(
            o.images_per_second >= one.images_per_second
            and o.miou >= one.miou
            and (o.images_per_second > one.images_per_second or o.miou > one.miou)
            for o in points
        )

    assert not any(beaten(one) for one in best)
    kept = {(one.images_per_second, one.miou) for one in best}
    assert all(beaten(o) for o in points if (o.images_per_second, o.miou) not in kept)
    speeds = [one.images_per_second for one in best]
    assert speeds == sorted(speeds)


def test_the_baseline_is_the_unpaused_model_at_its_own_size():
    small, paused = point("none size=144", 40.0, 0.6), point("3:0.4", 15.0, 0.69)
    whole = point("none by=neighbours", 10.0, 0.7)
    assert baseline([small, paused, whole]) is whole
    with pytest.raises(ValueError, match='lack the unpaused model: measure "none" too'):
        baseline([small, paused])


def test_what_is_not_known_is_asked_for():
    bare = Measurement(mode=Mode.parse("3:0.4 exit"))
    with pytest.raises(ValueError, match=r'"3:0\.4 exit" has no speed: time it first'):
        speed_of(bare)
    with pytest.raises(ValueError, match=r'"3:0\.4 exit" has no mIoU: evaluate it first'):
        miou_of(bare)
    with pytest.raises(ValueError, match="has no speed"):
        pareto_front([bare])


class TestTimed:
    def test_what_has_no_speed_is_left_out_with_a_warning(self, caplog):
        items = [point("none", 10.0, 0.7), point("3:<0.4", None, 0.69), point("3:0.4", 15.0, 0.68)]
        with caplog.at_level(logging.WARNING, "paumer"):
            assert timed(items, "runs/a") == [items[0], items[2]]
        assert [record.getMessage() for record in caplog.records] == [
            "runs/a has no speed of: 3:<0.4 (left out)"
        ]

    def test_where_all_are_timed_nothing_is_left_out(self, caplog):
        items = [point("3:0.4", 15.0, 0.68), point("none", 10.0, 0.7)]
        assert timed(items) == items
        assert timed(items[:1]) == items[:1]
        assert not caplog.records

    def test_without_any_speed_nothing_can_be_compared(self):
        items = [point("none", None, 0.7), point("3:0.4", None, 0.69)]
        for lacking in (items, items[1:], []):
            with pytest.raises(ValueError) as raised:
                timed(lacking, "runs/a")
            assert str(raised.value) == (
                '"runs/a" has no speeds: sweep it again with --speed predict'
            )

    def test_the_unpaused_model_needs_its_speed(self):
        items = [point("none", None, 0.7), point("3:0.4", 15.0, 0.69)]
        with pytest.raises(ValueError, match='has no speed of "none": sweep it again'):
            timed(items)
