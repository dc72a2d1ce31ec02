import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from paumer import Inference, Measurement, Mode
from paumer.data.datasets import open_dataset
from paumer.study import cost
from paumer.study.accuracy import evaluate
from paumer.study.cost import predict_speed, with_speeds
from paumer.study.speed import SpeedSettings
from paumer.study.sweep import Sweep, describe, save_tallies

PAIRS = Inference(batch=2)


def parse(*texts):
    return [Mode.parse(text) for text in texts]


MODES = parse("none", "2:0.4", "2:0.4,4:0.5", "3:0.5", "2:0.4,4:0.7")


@pytest.mark.parametrize("words", ["by=entropy", "by=random", "by=oracle", "exit by=neighbours"])
def test_a_sweep_counts_as_each_mode_alone_would(predictor, images, tmp_path, words):
    data, modes = images(5), parse(*(f"{mode} {words}" for mode in MODES))
    tallies = Sweep(predictor, data, modes, tmp_path, PAIRS).run()
    for mode, tally in zip(modes, tallies, strict=True):
        (alone,) = evaluate(predictor, data, [mode], PAIRS)
        assert np.array_equal(tally.images, alone.images)


def test_modes_of_all_kinds_share_one_sweep(predictor, images, tmp_path):
    modes = parse(
        "2:0.4,4:0.5",
        "2:0.4,4:0.5 exit",
        "2:0.4,4:0.5 by=neighbours",
        "2:0.4,4:0.5 protect=b",
        "2:0.4,4:0.5 size=48",
    )
    tallies = Sweep(predictor, images(4), modes, tmp_path, PAIRS).run()
    for mode, tally in zip(modes, tallies, strict=True):
        (alone,) = evaluate(predictor, images(4), [mode], PAIRS)
        assert np.array_equal(tally.images, alone.images)
    assert not np.array_equal(tallies[0].images, tallies[1].images)
    assert not np.array_equal(tallies[0].images, tallies[4].images)


def test_what_was_counted_is_not_counted_again(predictor, images, tmp_path):
    whole = Sweep(predictor, images(5), MODES, tmp_path / "whole", PAIRS).run()
    Sweep(predictor, images(5), MODES, tmp_path / "cut", PAIRS).run()
    lost = tmp_path / "cut/counts/batch-00001.npz"
    lost.rename(lost.with_name(f".{lost.name}.0123abcd.new"))  # Killed while it was written.
    data = images(5)
    again = Sweep(predictor, data, MODES, tmp_path / "cut", PAIRS).run()
    assert len(data.given) == 1 + 2  # The first image for the batch size, and the lost batch.
    for one_tally, other in zip(whole, again, strict=True):
        assert np.array_equal(one_tally.images, other.images)
    names = [{path.name for path in (tmp_path / out).rglob("*")} for out in ("whole", "cut")]
    assert names[0] == names[1]


def test_processes_share_a_folder(predictor, images, tmp_path):
    shared = Sweep(predictor, images(7), MODES, tmp_path / "shared", PAIRS)
    assert shared.run((1, 2)) is None
    assert len(list((tmp_path / "shared/counts").glob("*.npz"))) == 2
    tallies = shared.run((0, 2))
    alone = Sweep(predictor, images(7), MODES, tmp_path / "alone", PAIRS).run()
    for one_tally, other in zip(tallies, alone, strict=True):
        assert np.array_equal(one_tally.images, other.images)
        assert np.array_equal(one_tally.indices, other.indices)


def test_a_sweep_says_how_far_it_is(predictor, images, tmp_path):
    sweep_of = Sweep(predictor, images(6), MODES[:1], tmp_path, PAIRS, indices=[5, 0, 3, 1, 2])
    steps = []
    (tally,) = sweep_of.run(progress=lambda *step: steps.append(step))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    (tmp_path / "counts/batch-00001.npz").unlink()
    (again,) = sweep_of.run(progress=lambda *step: steps.append(step))
    assert steps[4:] == [(2, 3), (3, 3)]
    (whole,) = evaluate(predictor, images(6), MODES[:1], Inference(batch=1))
    for each in (tally, again):  # In the order of the data set, whatever that of the indices.
        assert each.indices.tolist() == [0, 1, 2, 3, 5]
        assert np.array_equal(each.images, whole.images[[0, 1, 2, 3, 5]])


def test_another_sweep_is_not_mixed_in(predictor, images, tmp_path):
    Sweep(predictor, images(4), MODES, tmp_path, PAIRS).run()
    for modes, inference in (
        (MODES[:2], PAIRS),
        (MODES, Inference(batch=1)),
        *((parse(*(f"{m} {word}" for m in MODES)), PAIRS) for word in ("exit", "by=random")),
        *((parse(*(f"{m} {word}" for m in MODES)), PAIRS) for word in ("protect=b", "size=48")),
    ):
        with pytest.raises(ValueError, match="belongs to another sweep"):
            Sweep(predictor, images(4), modes, tmp_path, inference).run()
    bad = tmp_path / "counts/batch-00000.npz"
    for content in (b"PK not really", b""):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"batch-00000.npz.*remove it"):
            Sweep(predictor, images(4), MODES, tmp_path, PAIRS).run()


def test_changed_files_are_another_sweep(predictor, tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    mask = tmp_path / "masks/a.png"
    Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(tmp_path / "images/a.png")
    Image.fromarray(np.zeros((32, 48), np.uint8)).save(mask)
    text = "val: {images: images, masks: masks}\nclasses: [a, b, c]\n"
    (tmp_path / "data.yaml").write_text(text)

    def run():
        data = open_dataset(str(tmp_path / "data.yaml"), "val")
        return Sweep(predictor, data, MODES, tmp_path / "out", PAIRS).run()

    assert np.array_equal(run()[0].images, run()[0].images)
    os.utime(mask, (1, 1))
    with pytest.raises(ValueError, match="belongs to another sweep"):
        run()


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_the_same(predictor, images, tmp_path):
    def count(name):
        return len(list((tmp_path / name / "counts").glob("*.npz")))

    def run(name, kill_at=None):
        """Run it in a process of its own, killed once about so many batches are counted."""
        child = os.fork()
        if child == 0:
            try:
                one_by_one = Inference(batch=1)
                Sweep(predictor, images(60), MODES, tmp_path / name, one_by_one).run()
                os._exit(0)
            finally:
                os._exit(1)
        if kill_at is not None:
            while count(name) < kill_at:
                time.sleep(0.001)
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]

    assert run("whole") == 0
    for kill_at in sorted(random.Random(0).sample(range(1, 50), 6)):
        assert run("killed", kill_at) != 0
    assert count("killed") < 60
    assert run("killed") == 0
    assert count("whole") == count("killed") == 60
    for file in (tmp_path / "whole/counts").glob("*.npz"):
        with np.load(file) as one_file, np.load(tmp_path / "killed/counts" / file.name) as other:
            assert np.array_equal(one_file["counts"], other["counts"])


def test_describing_says_cost_and_accuracy(predictor, images, tmp_path):
    modes = [*MODES, *parse("2:0.4,4:0.5 size=16", "2:<0.9")]
    tallies = Sweep(predictor, images(3), modes, tmp_path, PAIRS).run()
    found = describe(predictor, modes, tallies, (32, 48), "images val", PAIRS)
    assert [item.mode for item in found] == modes
    assert found[0].mac_ratio == 1
    macs = predictor.network.macs
    assert found[5].mac_ratio == macs((32, 48)) / macs((16, 24), "2:0.4,4:0.5")
    assert found[6].mac_ratio is None
    assert found[2].mac_ratio > found[1].mac_ratio > 1
    assert found[1].miou == tallies[1].miou
    assert found[1].miou_low <= found[1].miou <= found[1].miou_high
    assert found[1].data == "images val"


def test_tallies_are_kept(predictor, images, tmp_path, reading):
    modes = parse("none", "2:0.5", "2:0.5 exit by=neighbours")
    tallies = Sweep(predictor, images(3), modes, tmp_path / "sweep").run()
    save_tallies(tmp_path / "kept.npz", modes, tallies)
    again = reading.load_tallies(tmp_path / "kept.npz")
    assert list(again) == ["none", "2:0.5", "2:0.5 exit by=neighbours"]
    for own, kept in zip(tallies, again.values(), strict=True):
        assert np.array_equal(own.images, kept.images)
        assert np.array_equal(own.indices, kept.indices)
    (tmp_path / "kept.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cannot read .*kept\.npz"):
        reading.load_tallies(tmp_path / "kept.npz")


def test_tallies_of_0_1_are_read_by_their_stages(predictor, images, tmp_path, reading):
    modes = parse("none", "2:0.5")
    tallies = Sweep(predictor, images(3), modes, tmp_path / "sweep").run()
    np.savez_compressed(
        tmp_path / "old.npz",
        pauses=np.array(["none", "2:0.5"]),
        places=tallies[0].indices.astype(np.int32),
        counts=np.stack([tally.images for tally in tallies]).astype(np.int32),
    )
    again = reading.load_tallies(tmp_path / "old.npz")
    assert list(again) == ["none", "2:0.5"]
    assert again["2:0.5"].miou == tallies[1].miou


SPEEDS = parse("none", "2:0.4", "2:0.4 by=random", "2:0.4 exit by=oracle size=16", "2:<0.9")


@pytest.mark.parametrize("speed", ["predict", "measure"])
def test_measurements_get_speeds_where_they_are_fixed(predictor, monkeypatch, plain_table, speed):
    """What only a study knows costs nothing, and by threshold the cost depends on the image."""
    tables, asked = {None: plain_table(batch=3), 16: plain_table(25, batch=3)}, []
    image = np.zeros((32, 48, 3), np.uint8)

    def cost_tables(_, given, sizes, settings, batch, progress):
        asked.append((given is image, set(sizes), settings.rounds, batch))
        return tables

    def time_modes(_, given, modes, settings, batch, progress):
        asked.append((given is image, set(modes), settings.rounds, batch))
        return [replace(predict_speed(tables, mode), predicted=False) for mode in modes]

    monkeypatch.setattr(cost, "cost_tables", cost_tables)
    monkeypatch.setattr(cost.timing, "time_modes", time_modes)
    measured = [Measurement(mode=mode, miou=0.5, gmacs=2.0) for mode in SPEEDS]
    settings = SpeedSettings(rounds=4)
    found = with_speeds(measured, predictor, image, speed, settings, 3)
    runnable = parse("none", "2:0.4", "2:0.4", "2:0.4 exit size=16")
    expected = {None, 16} if speed == "predict" else set(runnable)
    assert asked == [(True, expected, 4, 3)]
    assert [item.mode for item in found] == SPEEDS
    assert {item.miou for item in found} == {0.5}
    for item, mode in zip(found[:-1], runnable, strict=True):
        own = predict_speed(tables, mode)
        assert (item.images_per_second, item.speed_up) == (own.images_per_second, own.speed_up)
        assert item.predicted == (speed == "predict")
    assert found[-1] == measured[-1]
