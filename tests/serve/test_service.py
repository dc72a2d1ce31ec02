import threading

import numpy as np
import pytest

from paumer import Measurement, Mode, Predictor
from paumer.inference.engines import TorchEngine
from paumer.serve.service import Parameters, Service, known_points, ladder_points


@pytest.fixture
def service(predictor):
    made = Service(predictor, target=60.0)  # Whatever else the machine does.
    made.start()
    yield made
    made.stop()


def image(seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return small.repeat(8, 0).repeat(8, 1)


def test_points_go_from_accurate_to_fast_and_beaten_ones_stay_out(predictor):
    known = known_points(predictor)
    assert list(known) == ["whole", "beaten", "middle", "quick"]
    assert list(ladder_points(known)) == ["whole", "middle", "quick"]


def test_two_names_of_one_point_are_one_rung():
    point = Measurement(mode=Mode(), speed_up=1.0, miou=0.7)
    assert list(ladder_points({"unpaused": point, "accurate": point})) == ["unpaused"]


@pytest.mark.parametrize("word", ["exit", "by=neighbours", "protect=a", "size=48"])
def test_points_that_differ_in_one_word_are_two_rungs(word):
    points = {
        "one": Measurement(mode=Mode.parse("2:0.5"), speed_up=1.4, miou=0.7),
        "two": Measurement(mode=Mode.parse(f"2:0.5 {word}"), speed_up=1.5, miou=0.6),
    }
    assert list(ladder_points(points)) == ["one", "two"]


def test_a_point_that_is_spelled_out_keeps_its_name(predictor):
    points = {
        "plain": Measurement(mode=Mode.parse("2:0.5"), speed_up=1.4, miou=0.7),
        "near": Measurement(mode=Mode.parse("2:0.5 by=neighbours"), speed_up=1.5, miou=0.6),
    }
    service = Service(Predictor(predictor.network, points))
    for text, name in {
        "2:0.5": "plain",
        "2:0.5 by=entropy": "plain",
        "2:0.5 by=neighbours": "near",
        "2:0.5 by=neighbours exit": None,
        "none by=neighbours exit": "unpaused",
    }.items():
        assert service.point_name(service.read({"mode": text}).mode) == name


def test_a_model_without_points_has_some_of_the_paper(predictor):
    bare = Predictor(predictor.network)
    points = known_points(bare)
    assert next(iter(points)) == "unpaused"
    assert [str(point.mode) for point in points.values()] == ["none", "3:0.4", "3:0.4,5:0.4"]
    speeds = [point.speed_up for point in points.values()]
    assert speeds == sorted(speeds)
    assert speeds[0] == 1
    only = Predictor(predictor.network, {"some": Measurement(mode=Mode.parse("2:0.5"))})
    assert list(known_points(only)) == ["unpaused", "some"]
    small = Predictor(predictor.network, {"small": Measurement(mode=Mode(size=32))})
    points = known_points(small)
    assert list(points) == ["unpaused", "small"]
    assert points["small"].speed_up > 2


GOOD = {"good": Measurement(mode=Mode.parse("2:0.4"))}


@pytest.mark.parametrize(
    ("text", "reason", "others"),
    [
        ("2:0.5 by=random", "by=random is for evaluate and sweep alone", GOOD),
        ("2:0.5 by=random", "by=random is for evaluate and sweep alone", {}),
        ("9:0.5", "cannot pause after block 9: this backbone has 6 blocks", GOOD),
        ("6:0.5", "pausing after block 6, the last one, saves nothing", GOOD),
        ("2:0.5 protect=nobody", "nobody", {}),
    ],
)
def test_a_point_that_cannot_run_is_left_out(predictor, caplog, text, reason, others):
    points = {"bad": Measurement(mode=Mode.parse(text), speed_up=2.0, miou=0.5), **others}
    service = Service(Predictor(predictor.network, points))
    service.start()
    service.stop()
    assert service.target > 0
    assert "unpaused" in service.names
    assert "bad" not in service.known
    assert ("good" in service.names) == bool(others)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert 'operating point "bad" is left out' in record.getMessage()
    assert reason in record.getMessage()


def test_parameters_are_read_once_and_for_all(service):
    usual = service.read({})
    assert (usual.mode, usual.limit, usual.output) == (None, 2, "mask")
    for text in ("2:0.3", "2:0.3 exit", "2:0.3 by=neighbours protect=thing%201 size=48"):
        assert str(service.read({"mode": text}).mode) == text
    assert str(service.read({"mode": "none size=48"}).mode) == "none size=48"
    assert str(service.read({"mode": "quick"}).mode) == "2:0.6 exit"
    assert service.read({"floor": "middle", "output": "rle"}) == Parameters(None, 1, "rle")
    hurried = service.read({"deadline_ms": "250", "priority": "high"})
    assert (hurried.seconds, hurried.priority) == (0.25, 2)
    for values, words in (
        ({"mode": "slow"}, 'mode "slow" is not one such as .* whole, beaten, middle, quick'),
        ({"mode": "auto exit"}, 'mode "auto exit" is not one such as'),
        ({"mode": "quick exit"}, 'mode "quick exit" is not one such as'),
        ({"mode": "2:1.5"}, "1.5"),
        ({"mode": "2:0.5 quickly"}, 'cannot read "quickly"'),
        ({"mode": "2:0.5 by=luck"}, 'no criterion "luck"'),
        ({"mode": "2:0.5 by=margin"}, 'criterion "margin" was removed in 0.2'),
        ({"mode": "2:0.5 by=random"}, "by=random is for evaluate and sweep alone"),
        ({"mode": "2:0.5 by=oracle"}, "by=oracle is for evaluate and sweep alone"),
        ({"mode": "2:0.5 protect=nobody"}, "nobody"),
        ({"mode": "99:0.5"}, "cannot pause after block 99"),
        ({"floor": "nowhere"}, 'no operating point "nowhere" to stop at'),
        ({"floor": ""}, 'no operating point "" to stop at'),
        ({"mode": "none", "floor": "quick"}, 'floor goes with mode "auto"'),
        ({"mode": "quick", "floor": "quick"}, 'floor goes with mode "auto"'),
        (
            {"output": "video"},
            'output "video" is not known: choose from mask, overlay, rle, arrays, all',
        ),
        ({"pause": "2:0.5"}, 'no option "pause" .a mode says it all'),
        ({"url": "x"}, 'no option "url": choose from mode, floor, output, deadline_ms, priority'),
        ({"priority": "urgent"}, 'priority "urgent" is not known: choose from low, normal, high'),
        *(
            ({"deadline_ms": text}, f'deadline_ms is "{text}": give milliseconds')
            for text in ("soon", "0", "-1", "nan", "inf", "1e9")
        ),
    ):
        with pytest.raises(ValueError, match=words):
            service.read(values)


def test_an_image_gets_the_labels_that_it_gets_alone(service, predictor):
    done = service.submit(image(), service.read({})).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(image()).labels)
    assert service.point_name(done.result.mode) == "whole"
    done = service.submit(image(), service.read({"mode": "3:0.3"})).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(image(), "3:0.3").labels)
    assert service.point_name(done.result.mode) is None
    assert 0 < service.work_ratio(done.result) < 1


def test_the_work_of_a_threshold_is_what_paused(service, predictor):
    done = service.submit(image(), service.read({"mode": "2:<9"})).result(30)
    assert service.work_ratio(done.result) < 0.95
    assert (
        service.submit(image(), service.read({"mode": "2:<-1"}))
        .result(30)
        .result.paused_after.max()
        == 0
    )


def test_the_work_of_another_size_is_compared_with_the_usual_one(service):
    works = {}
    for text in ("none size=32", "none", "none size=128", "2:0.5 size=128"):
        done = service.submit(image(), service.read({"mode": text})).result(30)
        assert done.result.labels.shape == (64, 64)
        works[text] = service.work_ratio(done.result)
    assert works["none size=32"] < works["none"] == 1
    assert 1 < works["2:0.5 size=128"] < works["none size=128"]


def test_a_fixed_point_stays(predictor):
    service = Service(predictor, target=60.0, point="middle")
    service.start()
    done = service.submit(image(), service.read({})).result(30)
    service.stop()
    assert str(done.result.mode) == "2:0.4"
    assert service.names == ("middle",)
    with pytest.raises(ValueError, match='no operating point "nowhere": choose from whole'):
        Service(predictor, point="nowhere")


def test_the_model_and_the_status_in_json(service):
    model = service.describe()
    assert [point["name"] for point in model["points"]] == ["whole", "middle", "quick"]
    assert [point["name"] for point in model["curve"]] == ["whole", "beaten", "middle", "quick"]
    whole, middle, quick = model["points"]
    assert middle.keys() == {
        *("name", "mode", "miou", "data", "images", "speed_up", "where", "work", "latency_ms")
    }
    assert 1 == whole["work"] > middle["work"] > quick["work"] > 0
    assert [point["mode"] for point in model["points"]] == ["none", "2:0.4", "2:0.6 exit"]
    assert model["points"][1]["miou"] == 0.68
    assert model["classes"][0].keys() == {"name", "colour"}
    assert model["blocks"] == 6
    assert model["latency_ms"] == 60_000
    service.tick()
    status = service.status()
    assert status["point"] == "whole"
    assert status["mode"] == "none"
    assert status["queue"] == 0
    assert len(status["history"]) == 1
    assert b"paumer_queue 0.0" in service.watch.metrics()


def test_work_that_nobody_wants_ends_at_the_next_block(predictor):
    class EnoughError(Exception):
        pass

    calls = []

    def check():
        calls.append(1)
        if len(calls) == 11:
            raise EnoughError

    engine = TorchEngine(predictor.network, check)
    worker = Predictor(predictor.network, predictor.points, engine)
    found = worker.predict_batch([image()], "2:0.4")[0]
    assert len(calls) == 6 + 1 + 1  # After each block, after the pause, before the decoder.
    assert np.array_equal(found.labels, predictor.predict(image(), "2:0.4").labels)
    with pytest.raises(EnoughError):
        worker.predict_batch([image()], "2:0.4")
    assert len(calls) == 11


def test_an_image_whose_client_is_gone_is_not_finished(service, predictor):
    entered, proceed = threading.Event(), threading.Event()
    (worker,) = service.workers
    batches = []

    def run(images, mode, wanted):
        def slowly():
            entered.set()
            assert proceed.wait(10)
            return wanted()

        return worker.run(images, mode, slowly)

    service.batcher.runs = [run]
    service.batcher.on_batch = lambda size, seconds: batches.append(size)
    gone = service.submit(image(), service.read({}))
    assert entered.wait(10)
    assert gone.cancel()
    proceed.set()
    done = service.submit(image(1), service.read({})).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(image(1)).labels)
    assert batches == [1, 1]


def test_a_deadline_that_cannot_be_met_is_refused_at_once(service):
    with pytest.raises(ValueError, match=r"deadline_ms is 0\.001, and such an image takes about"):
        service.submit(image(), service.read({"deadline_ms": "0.001"}))
    done = service.submit(image(), service.read({"deadline_ms": "60000"})).result(30)
    assert done.result.labels.shape == (64, 64)
