"""Images decoded in processes of their own: the same pixels, and limits that hold."""

import contextlib
import os
import threading
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paumer.data.images import TooLargeError, UnknownKindError, read_image
from paumer.data.isolated import Decoder, DecodingLimitError, DecodingLimits

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(scope="module")
def decoder():
    decoder = Decoder()
    yield decoder
    decoder.close()


def photograph(height=48, width=64, kind="PNG"):
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


ENDLESS = b"P3\n3000 1000\n255\n" + b"1 #\n" * 400_000
"""A plain-text image full of comments: many seconds of decoding."""


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_the_pixels_are_those_of_this_process(decoder, kind):
    content = photograph(kind=kind)
    pixels = decoder.read(content, DecodingLimits())
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert np.array_equal(pixels, read_image(content))


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", ValueError, "the file is empty"),
        (b"%PDF-1.7", UnknownKindError, "not an image of a known kind"),
        (photograph()[:500], ValueError, "damaged or cut short"),
        (photograph(8, 300), TooLargeError, "300x8 has a side above 256 pixels"),
        (photograph(200, 200), TooLargeError, "200x200 is 40,000 pixels"),
    ],
)
def test_errors_are_those_of_this_process(decoder, content, error, words):
    with pytest.raises(error, match=words):
        decoder.read(content, DecodingLimits(pixels=10_000, longest=256))


def test_a_file_is_called_by_its_name(decoder, tmp_path):
    path = tmp_path / "photo.png"
    with pytest.raises(FileNotFoundError, match=r'photo\.png" does not exist'):
        decoder.read(path, DecodingLimits())
    path.write_bytes(photograph())
    assert np.array_equal(decoder.read(path, DecodingLimits()), read_image(path))
    with pytest.raises(TooLargeError, match=r'cannot read ".*photo\.png": 64x48'):
        decoder.read(path, DecodingLimits(longest=50))
    path.write_bytes(ENDLESS)
    with pytest.raises(DecodingLimitError, match=r'cannot read ".*photo\.png": decoding it takes'):
        decoder.read(path, DecodingLimits(seconds=0.2))


def test_time_is_limited_by_the_processor_and_by_the_clock(decoder):
    decoder.read(photograph(), DecodingLimits())
    for limits in (DecodingLimits(seconds=0.2), DecodingLimits(seconds=9, clock=0.3)):
        begin = time.monotonic()
        with pytest.raises(DecodingLimitError, match=r"more than 0\.[23] s"):
            decoder.read(ENDLESS, limits)
        assert time.monotonic() - begin < 9


def test_memory_is_limited(decoder):
    content = photograph(2000, 2000)
    with pytest.raises(DecodingLimitError, match="more than 4 MB"):
        decoder.read(content, DecodingLimits(bytes=4 * 2**20))
    assert decoder.read(content, DecodingLimits()).shape == (2000, 2000, 3)


@pytest.mark.slow
def test_an_endless_image_does_not_hold_up_others(decoder):
    def attack():
        with pytest.raises(DecodingLimitError):
            decoder.read(ENDLESS, DecodingLimits(clock=3, niceness=19))

    attackers = [threading.Thread(target=attack) for _ in range(3)]
    for attacker in attackers:
        attacker.start()
    for _ in range(5):
        decoder.read(photograph(), DecodingLimits())
    assert any(attacker.is_alive() for attacker in attackers)
    for attacker in attackers:
        attacker.join()


def test_a_killed_helper_is_started_again(decoder):
    decoder.read(photograph(), DecodingLimits())
    before = decoder._process
    before.kill()
    before.wait()
    assert decoder.read(photograph(), DecodingLimits()).shape == (48, 64, 3)
    assert decoder._process.pid != before.pid


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_nothing_stays_open(decoder):
    decoder.read(photograph(), DecodingLimits())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(30):
        with contextlib.suppress(ValueError):
            decoder.read(b"" if number % 2 else photograph(), DecodingLimits())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_helper_ends_with_its_decoder():
    decoder = Decoder()
    decoder.start()
    process = decoder._process
    decoder.close()
    assert process.poll() is not None
