import copy
import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Inference, Measurement, Mode, Predictor, build_model
from paumer.inference.engines import make_engine
from paumer.inference.finished import join_parts
from paumer.inference.governor import Pace, ladder
from paumer.inference.jobs import STRANGERS, Job
from paumer.inference.sources import Source, find_sources
from paumer.mode import UNPAUSED


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", ("a", "b", "c"), image_size=32))


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(7):
        size = (32, 48, 3) if number % 3 else (40, 32, 3)
        path = tmp_path / "in" / f"sub{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, size, np.uint8)).save(path)
    return tmp_path / "in"


def lines(out):
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def read(path):
    with Image.open(path) as image:
        return np.asarray(image)


MODE, INFERENCE = Mode.parse("2:0.5"), Inference(batch=3)


def test_a_folder_is_mirrored_with_what_was_asked_for(predictor, folder, tmp_path):
    kinds = ("mask", "colour", "overlay", "paused", "entropy")
    steps = []
    job = Job(predictor, MODE, tmp_path / "out", INFERENCE, kinds)
    outcome = job.run(find_sources([folder]), lambda *done: steps.append(done))
    assert (outcome.written, outcome.skipped, outcome.broken) == (7, 0, [])
    assert steps[-1] == (7, 7)
    assert len(list((tmp_path / "out").rglob("*.png"))) == 7 * 5
    for line in lines(tmp_path / "out"):
        assert line["mode"] == "2:0.5"
        image = read(line["image"])
        alone = predictor.predict(image, "2:0.5")
        mask = read(tmp_path / "out" / line["files"][0])
        assert (mask == alone.labels).mean() > 0.999
        assert sum(line["shares"].values()) == pytest.approx(1, abs=1e-4)
        for file in line["files"]:
            assert read(tmp_path / "out" / file).shape[1] >= image.shape[1]


def test_finished_images_are_skipped(predictor, folder, tmp_path):
    job = Job(predictor, MODE, tmp_path / "out", INFERENCE)
    sources = find_sources([folder])
    job.run(sources[:3])
    with (tmp_path / "out/predictions.jsonl").open("a") as file:
        file.write('{"name": "sub1/5", "mod')  # As a kill leaves it.
    outcome = job.run(sources)
    assert (outcome.written, outcome.skipped) == (4, 3)
    assert len(lines(tmp_path / "out")) == 7
    (tmp_path / "out/sub0/0_mask.png").unlink()
    assert job.run(sources).written == 1
    assert len({line["key"] for line in lines(tmp_path / "out")}) == 7


def test_what_changed_since_is_segmented_again(predictor, folder, tmp_path):
    predictor = Predictor(copy.deepcopy(predictor.network))
    sources = find_sources([folder])
    assert Job(predictor, MODE, tmp_path / "out").run(sources).written == 7
    first, second = sources[0].path, sources[1].path
    first.write_bytes(second.read_bytes())
    outcome = Job(predictor, MODE, tmp_path / "out").run(sources)
    assert (outcome.written, outcome.skipped) == (1, 6)
    with torch.no_grad():
        predictor.network.aux_head.weight += 1
    assert Job(predictor, MODE, tmp_path / "out").run(sources).written == 7


@pytest.mark.parametrize(
    "mode", ["2:0.25", "2:0.5 exit", "2:0.5 by=neighbours", "2:0.5 protect=a", "2:0.5 size=24"]
)
def test_another_mode_is_segmented_again(predictor, folder, tmp_path, mode):
    sources, other = find_sources([folder])[:3], Mode.parse(mode)
    assert Job(predictor, MODE, tmp_path / "out").run(sources).written == 3
    assert Job(predictor, other, tmp_path / "out").run(sources).written == 3
    assert Job(predictor, Mode.parse(mode), tmp_path / "out").run(sources).skipped == 3
    assert [line["mode"] for line in lines(tmp_path / "out")] == 3 * ["2:0.5"] + 3 * [mode]


@pytest.mark.parametrize(
    "changed",
    [
        {"inference": Inference(window=32)},
        {"inference": Inference(flip=True)},
        {"kinds": ("mask", "entropy")},
    ],
)
def test_other_settings_are_segmented_again(predictor, folder, tmp_path, changed):
    sources = find_sources([folder])[:3]
    assert Job(predictor, MODE, tmp_path / "out").run(sources).written == 3
    assert Job(predictor, MODE, tmp_path / "out", **changed).run(sources).written == 3
    assert Job(predictor, MODE, tmp_path / "out", **changed).run(sources).skipped == 3


def test_broken_images_do_not_stop_the_rest(predictor, folder, tmp_path):
    (folder / "sub0/2.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "empty.jpg").write_bytes(b"")
    outcome = Job(predictor, MODE, tmp_path / "out", INFERENCE).run(find_sources([folder]))
    assert outcome.written == 6
    assert len(outcome.broken) == 2
    assert any("2.png" in text for text in outcome.broken)


def test_one_odd_image_does_not_end_the_job(predictor, folder, tmp_path):
    Image.fromarray(np.zeros((1, 3000, 3), np.uint8)).save(folder / "sub0/thin.png")
    mode, steps = Mode.parse("2:0.5 size=256"), []
    job = Job(predictor, mode, tmp_path / "out", INFERENCE, ("mask",))
    outcome = job.run(find_sources([folder]), lambda *done: steps.append(done))
    assert outcome.written == len(lines(tmp_path / "out")) == 7
    (message,) = outcome.broken
    assert message.startswith(f'cannot segment "{folder}/sub0/thin.png": an image of 3000x1 pixels')
    assert steps[-1] == (8, 8)
    again = job.run(find_sources([folder]))
    assert (again.written, again.skipped, again.broken) == (0, 7, [message])


def everything_below(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


@pytest.mark.parametrize("letters", [232, 248, 251])
def test_a_name_too_long_for_its_results_does_not_end_the_job(predictor, folder, tmp_path, letters):
    (folder / "sub0/0.png").rename(folder / f"sub0/{'n' * letters}.png")
    outcome = Job(predictor, MODE, tmp_path / "out", INFERENCE).run(find_sources([folder]))
    assert outcome.written == len(lines(tmp_path / "out")) == 6
    (message,) = outcome.broken
    assert message.startswith(f'cannot write the results of "{folder}/sub0/nnn')
    assert "File name too long" in message


def test_nothing_is_written_outside_the_output_folder(predictor, folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "else").mkdir()
    (tmp_path / "out/sub0").symlink_to(tmp_path / "else")
    (tmp_path / "out/loop").symlink_to("loop")
    before = everything_below(tmp_path / "in")
    job = Job(predictor, MODE, tmp_path / "out", INFERENCE, ("mask",))
    names = ("../escaped", "sub1/../../escaped", "loop/escaped", f"{tmp_path}/else/escaped")
    image = folder / "sub1/1.png"
    outcome = job.run([*find_sources([folder]), *(Source(image, name) for name in names)])
    assert outcome.written == 3
    assert len(outcome.broken) == 4 + len(names)
    assert sum("outside" in message for message in outcome.broken) == 4 + len(names) - 1
    assert everything_below(tmp_path / "else") == []
    assert everything_below(tmp_path / "in") == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["else", "in", "out"]
    with pytest.raises(ValueError, match=f'written to "{tmp_path}", outside "{tmp_path}/out"'):
        job.run_video(Source(tmp_path / "clip.mp4", "../clip"))


@pytest.mark.parametrize("spell", ["{}/*/../../aside.png", "{}/sub*/../sub0/0.png"])
def test_the_results_of_a_pattern_lie_in_the_output_folder(predictor, folder, tmp_path, spell):
    (folder / "sub0/0.png").rename(tmp_path / "aside.png")
    (folder / "sub0/0.png").symlink_to(tmp_path / "aside.png")
    (folder / "sub1").rename(tmp_path / "sub1")
    sources = find_sources([spell.format(folder)])
    assert Job(predictor, MODE, tmp_path / "out", kinds=("mask",)).run(sources).written == 1
    name = "aside" if "aside" in spell else "0"
    assert everything_below(tmp_path / "out") == [f"{name}_mask.png", "predictions.jsonl"]


def test_names_of_dots_are_written_like_others(predictor, folder, tmp_path):
    for name in ("..png", "...png", "sub1/..png"):
        (folder / "sub0/0.png").rename(folder / name)
        (folder / "sub0/2.png").rename(folder / "sub0/0.png")
        (folder / "sub0/4.png").rename(folder / "sub0/2.png")
        (folder / "sub0/4.png").write_bytes((folder / "sub0/2.png").read_bytes())
    job = Job(predictor, MODE, tmp_path / "out", INFERENCE, ("mask",))
    outcome = job.run(find_sources([folder]))
    assert (outcome.written, outcome.broken) == (10, [])
    written = everything_below(tmp_path / "out")
    assert {"..png_mask.png", "...png_mask.png", "sub1/..png_mask.png"} <= set(written)
    assert job.run(find_sources([folder])).skipped == 10


def test_a_full_disk_ends_the_job(predictor, folder, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("paumer.drawing.replace_file", full)
    with pytest.raises(OSError, match=r"No space left on device.*_mask\.png"):
        Job(predictor, MODE, tmp_path / "out").run(find_sources([folder]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_the_list_of_finished_images_is_a_file_of_its_own(predictor, folder, tmp_path, kind):
    path = tmp_path / "out/predictions.jsonl"
    path.parent.mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    make = {"link": lambda p: p.symlink_to("../mine.txt"), "pipe": os.mkfifo, "folder": os.mkdir}
    make[kind](path)
    with pytest.raises(ValueError, match=r'predictions\.jsonl" is a link, a pipe or a folder'):
        Job(predictor, MODE, tmp_path / "out").run(find_sources([folder]))
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_an_odd_image_is_no_step_of_the_governor(predictor, folder, tmp_path):
    Image.fromarray(np.zeros((1, 3000, 3), np.uint8)).save(folder / "sub0/thin.png")
    point = Measurement(mode=Mode(size=256), images_per_second=1e9, miou=0.7)
    pace = Pace(ladder([point]), target=1e-3)
    job = Job(predictor, UNPAUSED, tmp_path / "out", kinds=("mask",), pace=pace)
    outcome = job.run(find_sources([folder]))
    assert (outcome.written, outcome.late, len(outcome.broken)) == (7, 7, 1)


def test_what_no_image_can_run_with_is_refused_at_once(predictor, tmp_path):
    with pytest.raises(ValueError, match="a stride of 16 means nothing without a window"):
        Job(predictor, MODE, tmp_path, Inference(stride=16))
    with pytest.raises(ValueError, match="cannot pause after block 9"):
        Job(predictor, Mode.parse("9:0.5"), tmp_path)
    exported = make_engine("onnx", predictor.network, 1, lambda *_: None, tmp_path)
    with pytest.raises(ValueError, match="takes ratios, not thresholds"):
        Job(Predictor(predictor.network, engine=exported), Mode.parse("2:<0.5"), tmp_path)


def test_a_governor_moves_the_dial(predictor, folder, tmp_path):
    points = [
        Measurement(mode=UNPAUSED, images_per_second=1.0, miou=0.7),
        Measurement(mode=Mode.parse("2:0.5 exit"), images_per_second=1e9, miou=0.6),
    ]
    pace = Pace(ladder(points), target=1e-3)
    job = Job(predictor, UNPAUSED, tmp_path / "out", kinds=("mask",), pace=pace)
    outcome = job.run(find_sources([folder]))
    assert {line["mode"] for line in lines(tmp_path / "out")} == {"2:0.5 exit"}
    assert pace.governor.changes == 1
    assert outcome.late == 7  # Nothing takes less than a millisecond.


def test_other_kinds_are_refused(predictor, tmp_path):
    with pytest.raises(ValueError, match='cannot write "masks"'):
        Job(predictor, MODE, tmp_path, kinds=("masks",))


def test_what_several_processes_finished_is_joined_whatever_ends_them(predictor, folder, tmp_path):
    out, sources = tmp_path / "out", find_sources([folder])
    parts = [Job(predictor, MODE, out, INFERENCE, ("mask",), part=number) for number in (0, 1)]
    assert [job.run(sources[n::2]).written for n, job in enumerate(parts)] == [4, 3]
    assert not (out / "predictions.jsonl").exists()
    with (out / "predictions.part1.jsonl").open("a") as file:
        file.write('{"name": "cut o')
    join_parts(out)
    join_parts(out)
    assert sorted(line["name"] for line in lines(out)) == sorted(s.name for s in sources)
    assert list(out.glob("predictions.part*")) == []
    # As a kill between the list and the removal of a part leaves it.
    (out / "predictions.part0.jsonl").write_text((out / "predictions.jsonl").read_text())
    assert Job(predictor, MODE, out, INFERENCE, ("mask",)).run(sources).skipped == 7


def test_images_of_strangers_are_decoded_elsewhere(predictor, folder, tmp_path, monkeypatch):
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "large.png").write_bytes(bytes(12001))
    Image.fromarray(np.zeros((4, 100, 3), np.uint8)).save(folder / "wide.png")
    monkeypatch.setattr("paumer.inference.jobs.read_image", None)
    limits = replace(STRANGERS, longest=64)
    monkeypatch.setattr("paumer.inference.jobs.STRANGERS", limits)
    job = Job(predictor, MODE, tmp_path / "out", INFERENCE, ("mask",), isolate=True)
    outcome = job.run(find_sources([folder]))
    assert outcome.written == 7
    assert outcome.failed == {"read": 3}
    bad, large, wide = outcome.broken
    assert bad.startswith(f'cannot read "{folder}/bad.png": its header is damaged')
    assert f'cannot read "{folder}/large.png": ' in large
    assert f'"{folder}/wide.png"' in wide
    assert "64" in wide


def test_a_file_that_takes_a_stranger_too_much_memory_is_named(
    predictor, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("paumer.inference.jobs.STRANGERS", replace(STRANGERS, bytes=4 * 2**20))
    Image.fromarray(np.zeros((1500, 1500, 3), np.uint8)).save(folder / "large.bmp")
    job = Job(predictor, MODE, tmp_path / "out", kinds=("mask",), isolate=True)
    (message,) = job.run(find_sources([folder / "large.bmp"])).broken
    assert message.startswith(f'cannot read "{folder}/large.bmp": decoding it takes more than')


def test_what_a_killed_process_left_half_written_is_removed(predictor, folder, tmp_path):
    out = tmp_path / "out"
    (out / "sub0").mkdir(parents=True)
    left = [out / ".a_mask.png.0123abcd.new", out / "sub0" / ".b_mask.png.89abcdef.new"]
    other = out / ".notes.new"
    for path in (*left, other):
        path.write_bytes(b"half")
    Job(predictor, MODE, out, INFERENCE, ("mask",)).run(find_sources([folder]))
    assert not any(path.exists() for path in left)
    assert other.exists(), "what is not ours stays"
