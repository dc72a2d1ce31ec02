"""Directories held by one process, and new ones that appear as a whole."""

import errno

import pytest

from paumer import disk
from paumer.disk import alone_in, new_beside


def test_two_processes_are_not_at_work_in_one_directory(in_another_process, tmp_path):
    refused = pytest.raises(BlockingIOError, match="another process is at work in")
    with in_another_process(tmp_path), refused, alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass


def test_a_file_system_without_locks_holds_nothing(tmp_path, monkeypatch):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(disk.fcntl, "lockf", lockf)
    with alone_in(tmp_path):
        pass


def test_a_new_directory_appears_whole_or_not_at_all(tmp_path):
    wanted = tmp_path / "deep" / "er"
    with new_beside(wanted) as new:
        (new / "file").write_text("content")
        assert not wanted.exists()
        new.rename(wanted)
    assert (wanted / "file").read_text() == "content"


def test_a_new_directory_that_is_not_moved_is_removed(tmp_path):
    def fail(new):
        (new / "file").write_text("half")
        raise KeyError

    (tmp_path / "old").mkdir()
    with pytest.raises(KeyError), new_beside(tmp_path / "old") as new:
        fail(new)
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]


def test_new_directories_have_names_of_their_own_and_ordinary_permissions(tmp_path):
    (tmp_path / "plain").mkdir()
    with new_beside(tmp_path / "a") as one, new_beside(tmp_path / "a") as other:
        assert one != other
        assert one.parent == other.parent == tmp_path
        assert one.stat().st_mode == (tmp_path / "plain").stat().st_mode
