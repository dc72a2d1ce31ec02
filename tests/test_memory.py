import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from paumer.memory import give_back_memory

glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs Linux and glibc",
)


@glibc
def test_what_was_freed_between_live_things_goes_back():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    blocks = [bytes(2**16) for _ in range(1600)]  # 100 MB.
    blocks = [bytearray(block) for block in blocks]
    kept = blocks[::16]
    del blocks
    full = resident()
    give_back_memory()
    assert full - resident() > 50 * 2**20
    assert len(kept) == 100


FAULTS = """
import resource, sys
from paumer.memory import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(200 * 2**20)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@glibc
@pytest.mark.skipif(
    [int(n) for n in platform.libc_ver()[1].split(".") if n.isdigit()] < [2, 35],
    reason="before 2.35 the C library keeps blocks of up to 32 MB only",
)
def test_kept_memory_is_used_again_without_asking_the_system():
    def faults(how):
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 20 <= faults("give")
