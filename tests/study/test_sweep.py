import os
import random
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paumer import Inference, Measurement, Mode
from paumer.data.datasets import open_dataset
from paumer.study.accuracy import evaluate
from paumer.study.grids import one
from paumer.study.sweep import Sweep, describe, load_tallies, save_tallies, search
from paumer.study.tradeoff import Budget, choose

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
    lost.unlink()
    data = images(5)
    again = Sweep(predictor, data, MODES, tmp_path / "cut", PAIRS).run()
    assert len(data.given) == 1 + 2  # The first image for the batch size, and the lost batch.
    for one_tally, other in zip(whole, again, strict=True):
        assert np.array_equal(one_tally.images, other.images)


def test_processes_share_a_folder(predictor, images, tmp_path):
    sweep = Sweep(predictor, images(7), MODES, tmp_path / "shared", PAIRS)
    assert sweep.run((1, 2)) is None
    assert len(list((tmp_path / "shared/counts").glob("*.npz"))) == 2
    tallies = sweep.run((0, 2))
    alone = Sweep(predictor, images(7), MODES, tmp_path / "alone", PAIRS).run()
    for one_tally, other in zip(tallies, alone, strict=True):
        assert np.array_equal(one_tally.images, other.images)
        assert np.array_equal(one_tally.indices, other.indices)


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


def imagined(modes):
    """Each pause makes it faster and worse, early ones more so, and a third one much worse."""
    found = []
    for mode in modes:
        stages = mode.pause.stages
        work = sum(share * (12 - block) for block, share in stages)
        loss = sum(share * (12 - block) ** 2 for block, share in stages) / 5000
        loss += 0.2 * (len(stages) > 2)
        found.append(
            Measurement(
                mode=mode, images_per_second=1 + work / 6, speed_up=1 + work / 6, miou=0.7 - loss
            )
        )
    return found


def exiting(pause):
    """The mode of a search in which patches exit early."""
    return Mode(pause=pause, early_exit=True, criterion="neighbours")


def test_the_search_adds_blocks_while_it_helps():
    budget = Budget(max_drop=1.0)
    start = imagined([Mode()])
    found = search(imagined, exiting, budget, 12, [0.2, 0.4, 0.6], start)
    assert found[0] == start[0]
    assert all(str(item.mode).endswith(" exit by=neighbours") for item in found[1:])
    best, met = choose(found, budget)
    assert met
    assert len(best.mode.pause.stages) == 2
    assert 0.7 - best.miou <= 0.01
    single, _ = choose(imagined([Mode(pause=pause) for pause in one(12)]) + start, budget)
    assert best.speed_up > single.speed_up * 0.9


@given(st.integers(2, 14), st.integers(1, 4))
def test_the_search_ends_and_measures_only_what_can_run(depth, most):
    asked = []

    def measure(modes):
        asked.extend(modes)
        return imagined(modes)

    start = imagined([Mode()])
    search(
        measure, lambda pause: Mode(pause=pause), Budget(max_drop=100), depth, [0.5], start, most
    )
    for mode in asked:
        mode.pause.check(depth)
    assert max(len(mode.pause.stages) for mode in asked) <= most
    assert len(set(asked)) == len(asked)


def test_tallies_are_kept(predictor, images, tmp_path):
    modes = parse("none", "2:0.5", "2:0.5 exit by=neighbours")
    tallies = Sweep(predictor, images(3), modes, tmp_path / "sweep").run()
    save_tallies(tmp_path / "kept.npz", modes, tallies)
    again = load_tallies(tmp_path / "kept.npz")
    assert list(again) == ["none", "2:0.5", "2:0.5 exit by=neighbours"]
    for own, kept in zip(tallies, again.values(), strict=True):
        assert np.array_equal(own.images, kept.images)
        assert np.array_equal(own.indices, kept.indices)
    (tmp_path / "kept.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cannot read .*kept\.npz"):
        load_tallies(tmp_path / "kept.npz")


def test_tallies_of_0_1_are_read_by_their_stages(predictor, images, tmp_path):
    modes = parse("none", "2:0.5")
    tallies = Sweep(predictor, images(3), modes, tmp_path / "sweep").run()
    np.savez_compressed(
        tmp_path / "old.npz",
        pauses=np.array(["none", "2:0.5"]),
        places=tallies[0].indices.astype(np.int32),
        counts=np.stack([tally.images for tally in tallies]).astype(np.int32),
    )
    again = load_tallies(tmp_path / "old.npz")
    assert list(again) == ["none", "2:0.5"]
    assert again["2:0.5"].miou == tallies[1].miou
