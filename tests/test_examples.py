"""Each example runs as its user would run it, and does what it says; so does the notebook."""

import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Measurement, Mode, PauseConfig, build_model, load
from paumer.classes import CAMVID
from paumer.data.datasets import open_dataset
from paumer.data.images import read_image
from paumer.drawing import write_image
from paumer.inference.points import read_points
from paumer.scenes.scene import scene
from paumer.study.tradeoff import Budget
from paumer.study.tuning import Tuned

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = "test_vit2"  # Eight blocks of 64 channels.


def run(name, place, *arguments):
    """What an example prints, run in a folder by a process of its own."""
    environment = {
        "PYTHONPATH": str(EXAMPLES.parent),
        "XDG_CACHE_HOME": str(place / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_here(monkeypatch, tmp_path, capsys):
    """A function as ``run``, in this process: faster, and shapes are checked."""

    def give(name, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return give


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model of CamVid's classes."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("model") / "tiny"
    build_model(TINY, "mask", CAMVID.names, image_size=96).save_pretrained(place)
    return place


def test_segment_an_image(model, run_here, tmp_path):
    write_image(tmp_path / "corner.png", scene(3, (128, 96))[0])
    said = run_here("segment_an_image.py", "corner.png", "--model", model, "--mode", "3:0.5,5:0.5")
    # Of 48 patches 24 pause after block 3, 12 after block 5, and 12 run through all eight.
    assert "3:0.5,5:0.5: 75% of the patches paused" in said
    assert f"ran through {(24 * 3 + 12 * 5 + 12 * 8) / 48:.1f} of 8 blocks" in said
    mask = np.asarray(Image.open(tmp_path / "out/corner_mask.png"))
    expected = load(model).predict(tmp_path / "corner.png", "3:0.5,5:0.5")
    assert np.array_equal(mask, expected.labels)
    for kind in ("overlay", "paused"):
        assert f"wrote out/corner_{kind}.png" in said
        assert read_image(tmp_path / f"out/corner_{kind}.png").shape[1] >= 128


def test_segment_an_image_takes_the_built_in_model(run_here, tmp_path):
    said = run_here("segment_an_image.py", "--mode", "fast")
    assert "of the patches paused" in said
    assert "road" in said
    assert (tmp_path / "out/street_mask.png").is_file()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the training example printed, and the folder it ran in."""
    place = tmp_path_factory.mktemp("train")
    options = ("--backbone", TINY, "--ranges", "3-7:0.2-0.8", "--steps", 3, "--crop", 64)
    said = run("train_on_your_folder.py", place, *options, "--mode", "none", "3:0.4 exit")
    return said, place


def test_train_on_your_folder(trained):
    said, place = trained
    rows = dict(re.findall(r"^(none|3:0.4 exit): mIoU (\d+\.\d+)%", said, re.M))
    assert set(rows) == {"none", "3:0.4 exit"}
    assert all(0 <= float(value) <= 100 for value in rows.values())
    assert "trained from scratch" in said
    assert load(place / "runs/example").classes.names == CAMVID.names
    assert len(open_dataset(str(place / "runs/example-scenes"), "val")) > 0


def test_train_on_your_folder_describes_a_folder_once(tmp_path):
    describe = runpy.run_path(str(EXAMPLES / "train_on_your_folder.py"))["describe"]
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            write_image(tmp_path / kind / split / "a.png", np.zeros((8, 8, 3), np.uint8))
        Image.new("L", (8, 8), 1).save(tmp_path / "masks" / split / "a.png")
    with pytest.raises(SystemExit, match="--classes"):
        describe(tmp_path, [])
    data = describe(tmp_path, ["sky", "road"])
    validation = open_dataset(str(data), "val")
    assert validation.class_set.names == ("sky", "road")
    assert set(np.unique(validation[0].labels)) == {1}
    before = data.read_text("utf-8")
    assert describe(tmp_path, ["other"]).read_text("utf-8") == before


QUICK = ("--data", "scenes:2@96x64", "--most", 3, "--rounds", 1)


def test_choose_for_a_budget(trained, run_here, tmp_path):
    model = tmp_path / "mine"
    shutil.copytree(trained[1] / "runs/example/model", model)
    said = run_here("choose_for_a_budget.py", "--model", model, *QUICK, "--latency-ms", 1e6)
    points = read_points(model)
    assert set(points) == {"unpaused", "accurate", "balanced", "fast", "chosen"}
    assert points["chosen"].latency_ms < 1e6
    assert f"for 1e+06ms, chosen\n  {points['chosen'].mode}: " in said
    for name, point in points.items():
        assert f'predict(image, "{name}") runs {point.mode}' in said


def test_choose_for_a_budget_names_nothing_that_misses_it(model, run_here, tmp_path, monkeypatch):
    def nothing(predictor, dataset, budget, *_, **__):
        assert budget == Budget(max_drop=2.0)
        near = Measurement(mode=Mode(), miou=0.5, images_per_second=1.0, speed_up=1.0)
        return Tuned(near, False, {"fast": near}, (near,), budget)

    monkeypatch.setattr("paumer.study.tuning.tune", nothing)
    shutil.copytree(model, tmp_path / "mine")
    said = run_here("choose_for_a_budget.py", "--model", "mine", *QUICK, "--max-drop", 2)
    assert "nothing meets it; the nearest is\n  none: mIoU 50.00%, 1.00x as fast" in said
    assert set(read_points(tmp_path / "mine")) == {"fast"}


def test_pause_your_own_vit(run_here):
    said = run_here("pause_your_own_vit.py", "--backbone", "test_vit", "--rounds", 1)
    assert "bit for bit: True" in said
    assert re.search(r"3:0.4,5:0.4: tokens of shape \(2, \d+, 64\)", said)
    assert re.search(r"\d\.\d\dx as fast", said)


def test_your_own_vit_pauses_as_the_segmenter_does():
    forward = runpy.run_path(str(EXAMPLES / "pause_your_own_vit.py"))["forward_pausing"]
    assert len(inspect.getsource(forward).splitlines()) <= 40
    torch.manual_seed(0)
    network = build_model("test_vit", "linear", 5, image_size=64).eval()
    images = torch.randn(3, 3, 64, 64)
    with torch.inference_mode():
        for text in ("none", "3:0.4", "2:0.5,4:0.3"):
            config = PauseConfig.parse(text)
            tokens = forward(network.backbone.vit, network.aux_head, images, config)
            logits = network.decoder(tokens[:, network.backbone.prefix :], (4, 4))
            assert torch.equal(logits, network(images, config, full_size=False).logits)


def test_own_backbone(run_here):
    said = run_here("own_backbone.py").splitlines()
    assert said[0] == "none: (2, 11, 96, 128), 0% paused, 100% of the MACs"
    assert said[1].startswith("3:0.4: (2, 11, 96, 128), 40% paused, ")
    assert len(said) == 3


def test_own_training_loop(run_here, tmp_path):
    said = run_here("own_training_loop.py")
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d\d)$", said, re.M)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert 'Segmentation(96x64, mode "3:0.4"' in said
    assert load(tmp_path / "runs/own-loop").classes.names == CAMVID.names


def test_data_loader(run_here):
    said = run_here("data_loader.py")
    right = [int(value) for value in re.findall(r"^half \d: (\d+)% of the pixels", said, re.M)]
    assert len(right) == 4
    assert min(right) > 60
    assert "images: 4)" in said


def test_thread_pool(run_here):
    said = run_here("thread_pool.py").splitlines()
    assert len(said) == 6
    assert sum('mode "none"' in line for line in said) == 2


@pytest.mark.parametrize(
    "name", ["own_backbone", "own_training_loop", "data_loader", "thread_pool"]
)
def test_short_examples_are_short_and_in_the_docs(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert 15 <= len(text.splitlines()) <= 40
    code = text.split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in (EXAMPLES.parent / "docs/python-api.md").read_text("utf-8")


def test_the_notebook_runs(model, tmp_path, monkeypatch, capsys):
    notebook = json.loads((EXAMPLES / "paumer.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= {"MODEL": str(model), "DATA": "scenes:2@96x64"}
    said = capsys.readouterr().out
    assert "8 blocks, 11 classes" in said
    assert "none                0% paused, 100.0% of the labels as without pausing" in said
    assert "after block 3: 40% of the patches" in said
    assert len(names["measured"]) == 14
    assert all(item.miou is not None and item.speed_up for item in names["measured"])
    assert names["choice"] in names["measured"]
