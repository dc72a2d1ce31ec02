"""Small models that are saved and loaded, and whether two of them are the same."""

import shutil

import pytest
import torch

from paumer.model.build import build_model

IMAGES = torch.randn(1, 3, 40, 70, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def make(lively):
    """A function that builds a small model of named classes in which every weight matters."""

    def give(seed=0, **changes):
        options = {"backbone": "test_vit", "decoder": "mask", "classes": ["road", "sky", "car"]}
        return lively(build_model(**(options | changes)), seed).eval()

    return give


@pytest.fixture(scope="session")
def same():
    """A function: whether two networks are bit-equal, in their tensors and in what they say."""

    def compare(one, other):
        mine, theirs = (
            dict([*model.named_parameters(), *model.named_buffers()]) for model in (one, other)
        )
        with torch.inference_mode():
            answers = [model(IMAGES, "2:0.4,4:0.4").logits for model in (one, other)]
        return (
            torch.equal(*answers)
            and mine.keys() == theirs.keys()
            and all(map(torch.equal, mine.values(), theirs.values()))
        )

    return compare


@pytest.fixture(scope="session")
def template(make, tmp_path_factory):
    directory = tmp_path_factory.mktemp("template") / "model"
    make().save_pretrained(directory)
    return directory


@pytest.fixture
def model_directory(template, tmp_path):
    """A model directory that may be damaged."""
    return shutil.copytree(template, tmp_path / "model")


@pytest.fixture
def load(unchecked):
    """What loads a model directory, without shape checks: its own checks are what refuses."""
    return unchecked("paumer.model.segmenter").PausingSegmenter.from_pretrained
