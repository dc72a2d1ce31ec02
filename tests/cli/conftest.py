"""A small model in a folder, and commands that end with a complaint."""

import shutil
import sys

import pytest
import torch

from paumer import build_model
from paumer.cli.main import main


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The directory of a small model, not to be changed."""
    directory = tmp_path_factory.mktemp("template") / "model"
    torch.manual_seed(0)
    build_model("test_vit", "mask", ("a", "b", "c"), image_size=32).save_pretrained(directory)
    return directory


@pytest.fixture
def model(template, tmp_path):
    """A copy of it, to which operating points may be written."""
    return shutil.copytree(template, tmp_path / "model")


@pytest.fixture
def complaint(monkeypatch, capsys):
    """A function that gives the one line with which a mistaken command ends."""

    def give(*words):
        monkeypatch.setattr(sys, "argv", ["paumer", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1
        return said

    return give
