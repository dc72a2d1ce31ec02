import pytest

from paumer.inference.sources import find_sources


@pytest.fixture
def tree(tmp_path):
    for name in ("a.png", "b.JPG", "deep/a.png", "deep/er/c.webp", "deep/clip.mp4", "notes.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "in"


def names(sources):
    return [source.name for source in sources]


def test_a_folder_is_searched_and_mirrored(tree):
    found = find_sources([tree])
    assert names(found) == ["a", "b", "deep/a", "deep/clip", "deep/er/c"]
    assert [source.name for source in found if source.is_video] == ["deep/clip"]


def test_files_and_patterns(tree):
    assert names(find_sources([tree / "a.png", tree / "deep/er/c.webp"])) == ["a", "c"]
    assert names(find_sources([f"{tree}/**/*.png"])) == ["a", "deep/a"]
    assert names(find_sources([f"{tree}/deep/*.png"])) == ["a"]
    assert names(find_sources([tree / "a.png", tree / "a.png"])) == ["a"]


def test_no_name_leads_out_of_a_folder(tree):
    (tree / "..png").write_bytes(b"")
    (tree / "deep/...png").write_bytes(b"")
    assert names(find_sources([tree]))[:3] == ["..png", "a", "b"]
    assert "deep/...png" in names(find_sources([tree]))
    assert names(find_sources([tree / "deep/...png"])) == ["...png"]
    assert names(find_sources([f"{tree}/deep/*/../../b.*"])) == ["b"]
    assert names(find_sources([f"{tree}/deep/../*.png"])) == ["a"]
    with pytest.raises(ValueError, match="would overwrite each other"):
        find_sources([f"{tree}/d*/../**/a.png"])


def test_results_never_share_a_name(tree):
    (tree / "a.jpg").write_bytes(b"")
    assert names(find_sources([tree]))[:3] == ["a.jpg", "a.png", "b"]
    with pytest.raises(ValueError, match="would overwrite each other"):
        find_sources([tree / "a.png", tree / "deep/a.png"])


def test_results_are_not_taken_for_input(tree):
    out = tree / "out"
    out.mkdir()
    (out / "a_overlay.png").write_bytes(b"")
    assert "out/a_overlay" not in names(find_sources([tree], leave_out=out))
    assert names(find_sources([out / "a_overlay.png"], leave_out=out)) == ["a_overlay"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "neither a file nor a folder"),
        ("*.png", "nothing matches"),
        ("empty", "no images or videos in"),
    ],
)
def test_nothing_found_is_said(tmp_path, text, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=message):
        find_sources([str(tmp_path / text)])


@pytest.mark.parametrize("text", ["http://a.org/b.jpg", "https://a.org/b", "ftp://a/b.mp4"])
def test_what_lies_on_the_web_is_not_opened(text):
    with pytest.raises(ValueError, match=f'"{text}" is not opened: download it'):
        find_sources([text])


def test_cameras_and_streams_are_videos():
    address = "rtsp://me:secret@camera.local:554/live/1?quality=high"
    (stream,) = find_sources([address])
    assert (stream.name, stream.stream, stream.is_video) == (
        "camera.local-554-live-1",
        address,
        True,
    )
    assert "secret" not in str(stream.path)
    (device,) = find_sources(["/dev/null"])
    assert (device.name, device.stream, device.is_video) == ("null", "/dev/null", True)
    with pytest.raises(FileNotFoundError, match='there is no camera "/dev/video987"'):
        find_sources(["/dev/video987"])
