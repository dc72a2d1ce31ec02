"""YAML files of others: whatever they hold, a value or a sentence, and soon."""

import os

import pytest

from paumer.yaml_file import read_yaml

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("\ufeffsteps: 3", {"steps": 3}),
        ("a: &a {x: 1, y: 3}\nb: {<<: *a, x: 2}", {"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 3}}),
        ("c:\n- &b {<<: &a {x: 1}, x: 2}\nd: {<<: *b}", {"c": [{"x": 2}], "d": {"x": 2}}),
        ("size: !!python/tuple\n- 512\n- 256\n", {"size": [512, 256]}),
    ],
)
def test_what_people_write_is_read(tmp_path, text, value):
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    assert read_yaml(tmp_path / "a.yaml") == value


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("steps: 3\nlr: [1", "line 2, "),
        ("é: 3\n\nlr: \a", "line 3, special characters"),
        (b"steps: 3\nlr: \xff", "line 2, the file is not UTF-8 text"),
        ("a: 1\nb: 2\na: 3", 'line 3, "a" is written twice'),
        ("a: 1\n---\nb: 2", "line 2, .*another document"),
        ("a: 1\nb: 2001-99-99", 'line 2, "2001-99-99" is not a value of the kind "timestamp"'),
        ("!!int ''", 'line 1, "" is not a value of the kind "int"'),
        ("!!bool perhaps", 'line 1, "perhaps" is not a value of the kind "bool"'),
        ("!!timestamp now", 'line 1, "now" is not a value of the kind "timestamp"'),
        ("a: 1" + ":1" * 300_000, 'line 1, .* is not a value of the kind "int"'),
        ("? [a]\n: 1", "line 1, found unhashable key"),
        ("a: !!python/object/apply:os.getcwd []", "line 1, .*python/object"),
        ("a:\n  " + "[" * 100_000, "line 2, there are more than 50 levels"),
        ("a: 1\nb: " + "{a: " * 5000, "line 2, there are more than 50 levels"),
        ("- " * 5000, "line 1, there are more than 50 levels"),
        (LAUGHS, "line 6, there are more than 100000 entries"),
        ("a: 1\nb: &b [1, *b]", 'line 2, the alias "b" stands for itself'),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, content, problem):
    path = tmp_path / "a.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf'a\.yaml" is not valid YAML: {problem}'):
        read_yaml(path)


def test_no_more_is_read_than_such_a_file_can_hold(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 12345")
    assert read_yaml(tmp_path / "a.yaml", most=8) == {"a": 12345}
    with pytest.raises(ValueError, match=r'a\.yaml" is too large for .*at most 7 bytes'):
        read_yaml(tmp_path / "a.yaml", most=7)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_not_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(FileNotFoundError, match="is missing, or not a file"):
            read_yaml(tmp_path / name)
