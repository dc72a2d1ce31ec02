import json
import sys

import numpy as np
import pytest
from PIL import Image

from paumer import Measurement, Mode, Predictor
from paumer.cli.main import app, main
from paumer.inference.points import write_points


@pytest.fixture
def streets(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("one.png", "deep/two.png"):
        path = tmp_path / "streets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (32, 48, 3), np.uint8)).save(path)
    return tmp_path / "streets"


def run(*arguments):
    app([str(argument) for argument in arguments], result_action="return_value")


def points(model):
    write_points(
        model,
        {
            "slow": Measurement(mode=Mode(), images_per_second=0.01, miou=0.7),
            "quick": Measurement(mode=Mode.parse("2:0.5 exit"), images_per_second=1e6, miou=0.6),
        },
    )


def test_a_folder_and_again(model, streets, tmp_path, capsys):
    command = ("predict", streets, "--model", model, "--out", tmp_path / "out")
    command += ("--save", "mask", "entropy", "--mode")
    run(*command, "2:0.5")
    assert "segmented 2 of 2 images" in capsys.readouterr().out
    assert (tmp_path / "out/deep/two_entropy.png").exists()
    run(*command, " 2: 0.5 by=entropy")  # The same mode in other words.
    assert "segmented 0 of 2 images" in capsys.readouterr().out
    for other in ("2:0.5 by=neighbours", "2:0.5 exit", "2:0.5 protect=a", "2:0.5 size=48"):
        run(*command, other)
        assert "segmented 2 of 2 images" in capsys.readouterr().out
    lines = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["mode"] for line in lines[-2:]] == ["2:0.5 size=48"] * 2


def test_a_target_moves_the_dial(model, streets, tmp_path, capsys):
    points(model)
    out = tmp_path / "out"
    run("predict", streets, "--model", model, "--out", out, "--target-fps", 5)
    assert "changes of operating point" in capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert {line["mode"] for line in lines} == {"2:0.5 exit"}


def test_a_video_becomes_a_video(model, tmp_path, capsys):
    av = pytest.importorskip("av", reason="video needs PyAV")
    with av.open(str(tmp_path / "in.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for number in range(5):
            image = np.full((32, 48, 3), 40 * number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    run("predict", tmp_path / "in.mp4", "--model", model, "--out", tmp_path / "out")
    said = capsys.readouterr().out
    assert "in: 5 frames" in said
    assert f"run at 48x32; wrote {tmp_path / 'out/in_overlay.mp4'}" in said
    (line,) = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert (line["frames"], line["modes"], line["files"]) == (5, {"none": 5}, ["in_overlay.mp4"])
    assert sum(line["shares"].values()) == pytest.approx(1, abs=1e-4)
    run("predict", tmp_path / "in.mp4", "--model", model, "--out", tmp_path / "out")
    assert "in: was finished before" in capsys.readouterr().out
    with av.open(str(tmp_path / "out/in_overlay.mp4")) as file:
        assert sum(1 for _ in file.decode(video=0)) == 5
        assert file.streams.video[0].average_rate == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to segment"),
        (("nowhere.jpg",), "neither a file nor a folder"),
        (("STREETS", "--save", "masks"), 'cannot write "masks"'),
        (("STREETS", "--target-fps", "5", "--latency-ms", "5"), "give one of them"),
        (("STREETS", "--target-fps", "5", "--mode", "2:0.5"), "give one"),
        (("STREETS", "--latency-ms", "0"), "latency-ms is 0"),
        (("STREETS", "--latency-ms", "nan"), "latency-ms is nan"),
        (("STREETS", "--target-fps", "inf"), "target-fps is inf"),
        (("STREETS", "--min-miou", "60"), "--min-miou bounds"),
        (("STREETS", "--target-fps", "5"), "run paumer tune first"),
        (("STREETS", "--mode", "9:0.5"), "cannot pause after block 9"),
        (("STREETS", "--mode", "2:0.4 by=random"), "by=random is for evaluate and sweep alone"),
        (("STREETS", "--mode", "2:0.4 by=oracle"), "by=oracle is for evaluate and sweep alone"),
        (("STREETS", "--mode", "2:0.4 protect=nobody"), "nobody"),
        (("STREETS", "--mode", "quick"), "operating points of this model: none"),
        (("STREETS", "--mode", "paper"), 'cannot read "paper"'),
    ],
)
def test_mistakes(model, streets, tmp_path, complaint, arguments, message):
    words = [streets if word == "STREETS" else word for word in arguments]
    assert message in complaint("predict", *words, "--model", model, "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_a_file_is_not_a_folder_to_write_to(model, streets, tmp_path, complaint):
    (tmp_path / "taken").write_text("mine")
    said = complaint("predict", streets, "--model", model, "--out", tmp_path / "taken")
    assert "a file is where a folder should be" in said
    assert (tmp_path / "taken").read_text() == "mine"


def test_what_was_done_is_said(model, streets, tmp_path, capsys):
    points(model)
    (streets / "bad.png").write_bytes(b"no image")
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        run("predict", streets, "--model", model, "--out", out, "--mode", "quick", "--isolate")
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert f"segmented 2 of 3 images into {out}" in said.out
    assert 'mode "2:0.5 exit" ("quick": mIoU 60.0%), run at 48x32, ' in said.out
    assert " images/s" in said.out
    assert f"results: *_mask.png, *_overlay.png, *_paused.png and predictions.jsonl in {out}" in (
        said.out
    )
    assert "1 of 3 images have no results: 1 could not be read" in said.err
    (out / "one_mask.png").unlink()
    (out / "one_mask.png").mkdir()
    with pytest.raises(SystemExit):
        run("predict", streets, "--model", model, "--out", out, "--mode", "quick")
    assert "1 could not be read, 1 could not be written" in capsys.readouterr().err


def test_what_ctrl_c_leaves_is_said_and_the_same_command_goes_on(
    model, streets, tmp_path, capsys, monkeypatch
):
    out, sent = tmp_path / "out", []
    segment = Predictor.predict_batch

    def interrupted(predictor, images, *more):
        if sent:
            raise KeyboardInterrupt
        sent.append(images)
        return segment(predictor, images, *more)

    words = ["paumer", "predict", streets, "--model", model, "--out", out, "--batch", 1]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "predict_batch", interrupted)
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 130
    lines = (out / "predictions.jsonl").read_text().splitlines()
    said = " ".join(capsys.readouterr().err.split())
    assert len(lines) == 1
    assert f"stopped: 1 of 2 files are finished, with their results in {out}: " in said
    assert "the same command segments the others" in said
    run(*words[1:])
    said = capsys.readouterr().out
    assert f"segmented 1 of 2 images into {out}, 1 were finished before" in said
    lines = [json.loads(t) for t in (out / "predictions.jsonl").read_text().splitlines()]
    assert sorted(line["name"] for line in lines) == ["deep/two", "one"]


def test_two_processes_share_a_folder(model, streets, tmp_path, two_processes):
    command = ("predict", streets, "--model", model, "--out", tmp_path / "out", "--save", "mask")

    def work():
        run(*command)
        assert len(list((tmp_path / "out").rglob("*_mask.png"))) == 2

    two_processes(work)
    lines = [json.loads(t) for t in (tmp_path / "out/predictions.jsonl").read_text().splitlines()]
    assert sorted(line["name"] for line in lines) == ["deep/two", "one"]
    assert list((tmp_path / "out").glob("*.part*")) == []
    (tmp_path / "out/one_mask.png").unlink()
    two_processes(work)
    lines = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines[2:]] == ["one"]
