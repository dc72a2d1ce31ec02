import errno

import pytest

from paumer import disk
from paumer.disk import alone_in


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
