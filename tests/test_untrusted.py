"""JSON of others: an object or a sentence, and soon; messages repeat little of it."""

import os

import pytest

from paumer.untrusted import quoted, read_json, shorten


def test_an_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, "\u00e9"]}', "utf-8")
    assert read_json(tmp_path / "a.json", most=16) == {"a": [1, "\u00e9"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "Expecting value"),
        (b"[1]", "holds a list, not an object of names"),
        (b"[" * 20_000, "nested too deeply"),
        (b'{"a": ' * 20_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"a": "\xff"}', "can't decode"),
        (b" " * (2**20 + 1), "more than 1048576 bytes"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_the_file(tmp_path, content, problem):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf'cannot read ".*a\.json": .*{problem}'):
        read_json(tmp_path / "a.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_not_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros", "none", "."):
        with pytest.raises(FileNotFoundError, match="is missing or not a file"):
            read_json(tmp_path / name)


def test_messages_repeat_little():
    laughs = "x" * 1000
    for _ in range(50):
        laughs = [laughs] * 9
    for value in ("x" * 10**6, [1] * 10**6, {str(i): i for i in range(999)}, laughs, 10**2000):
        assert len(quoted(value)) <= 200
    assert quoted({7: "a"}) == "{7: 'a'}"
    assert shorten("x" * 600) == "x" * 600
    assert shorten(f"a{'x' * 700}b", 9) == "ax...xb"
