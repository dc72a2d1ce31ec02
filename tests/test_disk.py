import subprocess
import sys

import pytest

from paumer.disk import alone_in

HOLD = "import sys, pathlib; from paumer.disk import alone_in\n"
HOLD += "with alone_in(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def other(tmp_path):
    """Another process at work in the directory."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_processes_are_not_at_work_in_one_directory(other, tmp_path):
    with pytest.raises(BlockingIOError, match="another process is at work in"), alone_in(tmp_path):
        pass
    other.kill()
    other.wait()
    with alone_in(tmp_path):
        pass
