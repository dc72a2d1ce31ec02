from fractions import Fraction

import numpy as np
import pytest

from paumer.inference.video import VideoReader, VideoWriter

av = pytest.importorskip("av", reason="video needs PyAV")


def make(path, frames=12, rate=Fraction(25), size=(48, 64), sound=False):
    """A video of coloured squares; with sound a tone of the same length."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        audio = file.add_stream("aac", rate=16000) if sound else None
        for number in range(frames):
            image = np.full((*size, 3), 20 * number % 255, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
        if audio:
            samples = np.sin(np.arange(int(16000 * frames / rate)) / 10).astype(np.float32)
            for begin in range(0, len(samples) - 1023, 1024):
                part = av.AudioFrame.from_ndarray(
                    samples[None, begin : begin + 1024], format="fltp", layout="mono"
                )
                part.sample_rate, part.pts = 16000, begin
                file.mux(audio.encode(part))
            file.mux(audio.encode())
    return path


@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30000, 1001)])
@pytest.mark.parametrize("sound", [False, True])
def test_frames_rate_and_sound_are_kept(tmp_path, rate, sound):
    source = make(tmp_path / "in.mp4", rate=rate, sound=sound)
    with VideoReader(source) as reader:
        assert reader.rate == rate
        assert reader.has_sound == sound
        with VideoWriter(tmp_path / "out.mp4", reader.rate, source if sound else None) as writer:
            for frame in reader:
                writer.write(frame[:47, :63])  # Odd sides are made even.
    with VideoReader(tmp_path / "out.mp4") as reader:
        frames = list(reader)
        assert (len(frames), reader.rate, reader.has_sound) == (12, rate, sound)
        assert frames[0].shape == (48, 64, 3)
    assert abs(int(frames[5].mean()) - 100) < 6
    if sound:
        lengths = []
        for path in (source, tmp_path / "out.mp4"):
            with av.open(str(path)) as file:
                lengths.append(sum(frame.samples for frame in file.decode(audio=0)))
        assert abs(lengths[0] - lengths[1]) <= 1024


def test_a_failure_leaves_no_half_video(tmp_path):
    def fail():
        with VideoWriter(tmp_path / "out.mp4", Fraction(25)) as writer:
            writer.write(np.zeros((16, 16, 3), np.uint8))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_video_is_refused(tmp_path):
    (tmp_path / "text.mp4").write_text("not a video")
    with pytest.raises(ValueError, match=r"cannot read the video .*text\.mp4"):
        VideoReader(tmp_path / "text.mp4")
    with pytest.raises(ValueError, match="cannot read the video"):
        VideoReader(tmp_path / "nowhere.mp4")


def test_a_camera_or_stream_that_cannot_be_opened_is_named_without_its_password():
    with pytest.raises(ValueError, match=r'cannot read the video "/dev/null": .*; see that it is'):
        VideoReader("/dev/null")
    with pytest.raises(
        ValueError, match=r'video "rtsp://127\.0\.0\.1:9/a": .*check the address'
    ) as e:
        VideoReader("rtsp://me:secret@127.0.0.1:9/a")
    assert "secret" not in str(e.value)
