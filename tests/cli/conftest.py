"""Commands that end with a complaint."""

import sys

import pytest

from paumer.cli.main import main


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
