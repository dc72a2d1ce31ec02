import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Inference, PauseConfig, Predictor, build_model
from paumer.jobs import Job
from paumer.serve.governor import Governor, ladder
from paumer.sources import find_sources
from paumer.study.tradeoff import Measurement


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", ("a", "b", "c"), image_size=32))


@pytest.fixture
def folder(tmp_path):
    dice = np.random.default_rng(0)
    for number in range(7):
        size = (32, 48, 3) if number % 3 else (40, 32, 3)
        path = tmp_path / "in" / f"sub{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 255, size, np.uint8)).save(path)
    return tmp_path / "in"


def lines(out):
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def read(path):
    with Image.open(path) as picture:
        return np.asarray(picture)


HOW = Inference(pause=PauseConfig.parse("2:0.5"), batch=3)


def test_a_folder_is_mirrored_with_what_was_asked_for(predictor, folder, tmp_path):
    kinds = ("mask", "colour", "overlay", "paused", "entropy")
    steps = []
    job = Job(predictor, HOW, tmp_path / "out", kinds)
    outcome = job.run(find_sources([folder]), lambda *done: steps.append(done))
    assert (outcome.written, outcome.passed, outcome.broken) == (7, 0, [])
    assert steps[-1] == (7, 7)
    assert len(list((tmp_path / "out").rglob("*.png"))) == 7 * 5
    for line in lines(tmp_path / "out"):
        image = read(line["picture"])
        alone = predictor.predict(image, "2:0.5")
        mask = read(tmp_path / "out" / line["files"][0])
        assert (mask == alone.labels).mean() > 0.999
        assert sum(line["shares"].values()) == pytest.approx(1, abs=1e-4)
        for file in line["files"]:
            assert read(tmp_path / "out" / file).shape[1] >= image.shape[1]


def test_finished_pictures_are_passed_over(predictor, folder, tmp_path):
    job = Job(predictor, HOW, tmp_path / "out")
    sources = find_sources([folder])
    job.run(sources[:3])
    with (tmp_path / "out/predictions.jsonl").open("a") as file:
        file.write('{"name": "sub1/5", "pau')  # As a kill leaves it.
    outcome = job.run(sources)
    assert (outcome.written, outcome.passed) == (4, 3)
    assert len(lines(tmp_path / "out")) == 7
    (tmp_path / "out/sub0/0_mask.png").unlink()
    assert job.run(sources).written == 1
    other = Job(predictor, Inference(pause=PauseConfig.parse("2:0.25")), tmp_path / "out")
    assert other.run(sources).written == 7


def test_what_changed_since_is_segmented_again(predictor, folder, tmp_path):
    predictor = Predictor(copy.deepcopy(predictor.network))
    sources = find_sources([folder])
    assert Job(predictor, HOW, tmp_path / "out").run(sources).written == 7
    first, second = sources[0].path, sources[1].path
    first.write_bytes(second.read_bytes())
    outcome = Job(predictor, HOW, tmp_path / "out").run(sources)
    assert (outcome.written, outcome.passed) == (1, 6)
    mine = replace(
        HOW, pause=PauseConfig.parse("2:0.5"), criterion=lambda logits, places: logits[..., 0]
    )
    for _ in range(2):  # What a criterion without a name did before cannot be known.
        assert Job(predictor, mine, tmp_path / "mine").run(sources).written == 7
    with torch.no_grad():
        predictor.network.aux_head.weight += 1
    assert Job(predictor, HOW, tmp_path / "out").run(sources).written == 7


def test_broken_pictures_do_not_stop_the_rest(predictor, folder, tmp_path):
    (folder / "sub0/2.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "empty.jpg").write_bytes(b"")
    outcome = Job(predictor, HOW, tmp_path / "out").run(find_sources([folder]))
    assert outcome.written == 6
    assert len(outcome.broken) == 2
    assert any("2.png" in text for text in outcome.broken)


def test_a_governor_moves_the_dial(predictor, folder, tmp_path):
    points = [
        Measurement(pause=PauseConfig(), images_per_second=1.0, miou=0.7),
        Measurement(
            pause=PauseConfig.parse("2:0.5"), images_per_second=1e9, miou=0.6, early_exit=True
        ),
    ]
    governor = Governor(ladder(points), target=1e-3)
    job = Job(predictor, Inference(), tmp_path / "out", ("mask",), governor)
    outcome = job.run(find_sources([folder]))
    assert {line["pause"] for line in lines(tmp_path / "out")} == {"2:0.5"}
    assert outcome.changes == 1
    assert outcome.late == 7  # Nothing takes less than a millisecond.


def test_other_kinds_are_refused(predictor, tmp_path):
    with pytest.raises(ValueError, match='cannot write "masks"'):
        Job(predictor, HOW, tmp_path, ("masks",))
