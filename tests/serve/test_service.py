import threading

import numpy as np
import pytest

from paumer import PauseConfig, Predictor
from paumer.serve.service import Asked, Service, known_points, ladder_points, stoppable
from paumer.study.tradeoff import Measurement


@pytest.fixture
def service(predictor):
    made = Service(predictor, "small")
    made.start()
    yield made
    made.stop()


def picture(seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return small.repeat(8, 0).repeat(8, 1)


def test_points_go_from_accurate_to_fast_and_beaten_ones_stay_out(predictor):
    known = known_points(predictor)
    assert list(known) == ["whole", "beaten", "middle", "quick"]
    assert list(ladder_points(known)) == ["whole", "middle", "quick"]


def test_two_names_of_one_point_are_one_rung():
    point = Measurement(pause=PauseConfig(), speed_up=1.0, miou=0.7)
    assert list(ladder_points({"unpaused": point, "accurate": point})) == ["unpaused"]


def test_points_that_differ_in_who_pauses_are_two_rungs():
    pause = PauseConfig.parse("2:0.5")
    points = {
        "one": Measurement(pause=pause, speed_up=1.4, miou=0.7),
        "two": Measurement(pause=pause, speed_up=1.5, miou=0.6, criterion="borders"),
    }
    assert list(ladder_points(points)) == ["one", "two"]


def test_a_point_that_is_spelled_out_keeps_its_name(predictor):
    pause = PauseConfig.parse("2:0.5")
    points = {
        "plain": Measurement(pause=pause, speed_up=1.4, miou=0.7),
        "near": Measurement(pause=pause, speed_up=1.5, miou=0.6, criterion="neighbours"),
    }
    service = Service(Predictor(predictor.network, points), "small")
    for criterion, name in ((None, "plain"), ("neighbours", "near"), ("borders", None)):
        assert service.point_name(service.way(Asked(pause="2:0.5", criterion=criterion))) == name
    assert service.point_name(service.way(Asked(pause="none", criterion="borders"))) == "unpaused"


def test_a_model_without_points_has_some_of_the_paper(predictor):
    bare = Predictor(predictor.network)
    points = known_points(bare)
    assert next(iter(points)) == "unpaused"
    assert [str(point.pause) for point in points.values()] == ["none", "3:0.4", "3:0.4,5:0.4"]
    speeds = [point.speed_up for point in points.values()]
    assert speeds == sorted(speeds)
    assert speeds[0] == 1
    only = Predictor(predictor.network, {"some": Measurement(pause=PauseConfig.parse("2:0.5"))})
    assert list(known_points(only)) == ["unpaused", "some"]


def test_what_can_be_asked_for(service):
    assert service.way(Asked()) is None
    assert str(service.way(Asked(pause="2:0.3")).pause) == "2:0.3"
    assert service.way(Asked(pause="2:0.3", early_exit=True)).early_exit
    assert service.way(Asked(pause="quick")).early_exit
    assert service.limit("middle") == 1
    for asked, words in {
        Asked(pause="slow"): '"slow" is no configuration .* whole, beaten, middle, quick',
        Asked(pause="2:1.5"): "share 1.5",
        Asked(pause="99:0.5"): "cannot pause after block 99",
        Asked(early_exit=True): 'early_exit goes with a configuration .* not with "auto"',
        Asked(floor="nowhere"): 'no operating point "nowhere" to stop at',
        Asked(pause="none", floor="quick"): 'floor goes with pause "auto"',
    }.items():
        with pytest.raises(ValueError, match=words):
            service.check(asked)


def test_a_picture_gets_the_labels_that_it_gets_alone(service, predictor):
    done = service.submit(picture(), Asked()).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(picture()).labels)
    assert service.point_name(done.way) == "whole"
    done = service.submit(picture(), Asked(pause="3:0.3")).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(picture(), "3:0.3").labels)
    assert service.point_name(done.way) is None
    assert 0 < service.work_ratio(done.result, done.way) < 1


def test_the_work_of_a_threshold_is_what_paused(service, predictor):
    done = service.submit(picture(), Asked(pause="2:<9")).result(30)
    assert service.work_ratio(done.result, done.way) < 0.95
    assert service.submit(picture(), Asked(pause="2:<-1")).result(30).result.paused_after.max() == 0


def test_a_fixed_point_stays(predictor):
    service = Service(predictor, point="middle")
    service.start()
    done = service.submit(picture(), Asked()).result(30)
    service.stop()
    assert str(done.way.pause) == "2:0.4"
    assert service.names == ("middle",)
    with pytest.raises(ValueError, match='no operating point "nowhere": choose of whole'):
        Service(predictor, point="nowhere")


def test_the_model_and_the_status_in_json(service):
    model = service.describe()
    assert [point["name"] for point in model["points"]] == ["whole", "middle", "quick"]
    assert [point["name"] for point in model["curve"]] == ["whole", "beaten", "middle", "quick"]
    assert model["points"][1]["pause"] == "2:0.4"
    assert model["points"][1]["miou"] == 0.68
    assert model["classes"][0].keys() == {"name", "colour"}
    assert model["blocks"] == 6
    assert model["latency_ms"] > 0
    service.tick()
    status = service.status()
    assert status["point"] == "whole"
    assert status["queue"] == 0
    assert len(status["history"]) == 1
    assert b"paumer_queue 0.0" in service.metrics()


def test_work_that_nobody_wants_ends_at_the_next_block(predictor):
    class EnoughError(Exception):
        pass

    asked = []

    def ask():
        asked.append(1)
        if len(asked) == 9:
            raise EnoughError

    worker = stoppable(predictor, ask)
    how = predictor.way("2:0.4")
    found = worker.predict_batch([picture()], how)[0]
    assert len(asked) == 6  # Once for each block.
    assert np.array_equal(found.labels, predictor.predict(picture(), "2:0.4").labels)
    with pytest.raises(EnoughError):
        worker.predict_batch([picture()], how)
    assert len(asked) == 9


def test_a_picture_whose_client_is_gone_is_not_finished(service, predictor):
    entered, go_on = threading.Event(), threading.Event()
    check = service.batcher.check_wanted

    def slowly():
        entered.set()
        assert go_on.wait(10)
        check()

    service.batcher.check_wanted = slowly
    batches = []
    service.batcher.on_batch = lambda size, seconds: batches.append(size)
    gone = service.submit(picture(), Asked())
    assert entered.wait(10)
    assert gone.cancel()
    go_on.set()
    done = service.submit(picture(1), Asked()).result(30)
    assert np.array_equal(done.result.labels, predictor.predict(picture(1)).labels)
    assert batches == [1, 1]
