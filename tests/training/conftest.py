"""A small data set and a small run on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import PausingSegmenter
from paumer.training import run
from paumer.training.options import TrainOptions

TINY = TrainOptions(
    data="",
    backbone="test_vit",
    init="none",
    ranges="2-4:0.2-0.8",
    crop="32",
    batch=4,
    steps=8,
    val_every=100,
    val_mode=("none", "2:0.5 exit by=neighbours"),
    val_images=2,
    save_every=1,
    workers=0,
    accelerator="cpu",
    lr=1e-2,
)


@pytest.fixture(scope="session", autouse=True)
def quick_curves():
    """Curves of training are drawn once: matplotlib takes longer than the training."""
    drawn = []

    def draw(columns, path, real=run.draw_training):
        if not drawn:
            real(columns, path)
            drawn.append(path.read_bytes())
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(drawn[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "draw_training", draw)
        yield


@pytest.fixture(scope="session")
def folder():
    """A function that writes a small data set of one's own; ``bad`` breaks one training image.

    ``sides`` are the heights of the images.
    """

    def write(path, bad=False, sides=(40,) * 4):
        rng = np.random.default_rng(0)
        for split in ("train", "val"):
            for kind in ("images", "masks"):
                (path / kind / split).mkdir(parents=True)
            for number, side in enumerate(sides):
                image = rng.integers(0, 255, (side, side + 8, 3), np.uint8)
                Image.fromarray(image).save(path / "images" / split / f"{number}.png")
                Image.fromarray(image[..., 0] % 3).save(path / "masks" / split / f"{number}.png")
        if bad:
            (path / "images/train/2.png").write_bytes(b"not an image")
        text = "train: {images: images/train, masks: masks/train}\n"
        text += "val: {images: images/val, masks: masks/val}\nclasses: [a, b, c]\n"
        (path / "data.yaml").write_text(text)
        return str(path / "data.yaml")

    return write


@pytest.fixture(scope="session")
def tiny(folder, tmp_path_factory):
    """Options of a small run."""
    return replace(TINY, data=folder(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def whole(tiny, tmp_path_factory):
    """An undisturbed run."""
    return run.train(replace(tiny, out=tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture(scope="session")
def assert_same():
    """A function that holds the weights of two runs to be equal to the last bit."""

    def compare(one, other):
        models = [PausingSegmenter.from_pretrained(path / "model") for path in (one, other)]
        first, second = (model.state_dict() for model in models)
        assert first.keys() == second.keys()
        assert [n for n, value in first.items() if not torch.equal(value, second[n])] == []

    return compare
