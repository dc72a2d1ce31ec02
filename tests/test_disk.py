"""Directories held by one process, and new ones that appear as a whole."""

import errno
import os

import pytest

from paumer import disk
from paumer.disk import alone_in, new_beside, replace_file


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_prepared_lock_is_neither_followed_nor_waited_for(tmp_path, kind):
    notes, run = tmp_path / "notes", tmp_path / "run"
    notes.write_text("of the user")
    run.mkdir()
    if kind == "pipe":
        os.mkfifo(run / ".lock")
    elif kind == "folder":
        (run / ".lock").mkdir()
    else:
        (run / ".lock").symlink_to(notes if kind == "link" else tmp_path / "nothing")
    refused = pytest.raises(ValueError, match=r'\.lock" is a link, a pipe or a folder, .*remove it')
    with refused, alone_in(run):
        pass
    assert notes.read_text() == "of the user"
    assert not (tmp_path / "nothing").exists()


def test_what_is_in_the_lock_stays(tmp_path):
    (tmp_path / "notes").write_text("of the user")
    os.link(tmp_path / "notes", tmp_path / ".lock")
    with alone_in(tmp_path):
        pass
    assert (tmp_path / "notes").read_text() == "of the user"


needs_locks = pytest.mark.skipif(disk.fcntl is None, reason="no locks there")


@needs_locks
def test_who_holds_a_directory_removes_what_killed_processes_left(tmp_path):
    (tmp_path / "deep").mkdir()
    left = [tmp_path / ".a.json.0123abcd.new", tmp_path / "deep" / ".b.deadbeef.new"]
    own = [".a.json.new", ".a.0123abcd.old", "a.0123abcd.new", ".a.0123ABCD.new", ".a.123abcd.new"]
    kept = [tmp_path / name for name in own]
    for path in (*left, *kept):
        path.write_text("half")
    (tmp_path / ".link.0123abcd.new").symlink_to(kept[0])
    (tmp_path / ".folder.0123abcd.new").mkdir()
    with alone_in(tmp_path):
        assert [path for path in left if path.exists()] == []
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "deep", ".link.0123abcd.new", ".folder.0123abcd.new", *own}


@needs_locks
def test_what_a_living_process_writes_is_no_leftover(tmp_path, monkeypatch):
    real, seen = os.fsync, []

    def clean(handle):
        seen.extend(tmp_path.glob(".*.new"))
        with alone_in(tmp_path):
            pass
        real(handle)

    monkeypatch.setattr(os, "fsync", clean)
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert seen
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".lock"}


@needs_locks
def test_what_was_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    real, removed = disk._lock, []

    def late(path, wait):
        if wait and len(removed) < 2:
            removed.append(path)
            with monkeypatch.context() as patch:
                patch.setattr(disk, "_lock", real)
                disk._remove_leftover(path)
            assert not path.exists()
        return real(path, wait)

    monkeypatch.setattr(disk, "_lock", late)
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    removed.clear()
    with new_beside(tmp_path / "b") as new:
        new.rename(tmp_path / "b")
    assert len(removed) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@needs_locks
def test_what_a_killed_process_left_of_a_new_directory_is_removed(tmp_path):
    for name in (".run-0123abcd", ".run-2-0123abcd", ".other-0123abcd", ".run-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    (tmp_path / ".run-deadbeef").symlink_to(tmp_path / ".other-0123abcd")
    with new_beside(tmp_path / "run") as new:
        new.rename(tmp_path / "run")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run", ".run-2-0123abcd", ".other-0123abcd", ".run-mine", ".run-deadbeef"}
    assert (tmp_path / ".other-0123abcd" / "file").exists()


def test_a_full_disk_names_the_file_that_was_to_be(tmp_path):
    def fail(new):
        raise OSError(errno.ENOSPC, "No space left on device", str(new / "deep" / "a.json"))

    def fail_inside(new, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        replace_file(new / "a.json", b"content")

    message = r"No space left on device; what was saved before is intact: '\S*/run/{}a\.json'$"
    with pytest.raises(OSError, match=message.format("deep/")), new_beside(tmp_path / "run") as new:
        fail(new)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(OSError, match=message.format("")),
        new_beside(tmp_path / "run") as new,
    ):
        fail_inside(new, patch)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []
