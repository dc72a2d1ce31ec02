"""What is finished of a job: lines of JSON, of each of several processes until they are joined."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from paumer.disk import replace_file

LINES_FILE = "predictions.jsonl"


def lines_file(folder: Path, part: int | None = None) -> Path:
    """The list of a folder, or the part of it that a process of that number writes."""
    path = folder / (LINES_FILE if part is None else f"predictions.part{part}.jsonl")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(
            f'"{path}" is a link, a pipe or a folder, and must be a file of its own: remove it'
        )
    return path


def join_parts(folder: Path) -> None:
    """Put what several processes finished into the one list; lines that a kill cut off are left.

    However it ends, no line is lost: the parts are removed once the list has them.
    """
    parts = [part for part in sorted(folder.glob("predictions.part*.jsonl")) if part.is_file()]
    path = lines_file(folder)
    content = path.read_bytes() if path.is_file() else b""
    joined = b"".join(map(_whole_lines, [content, *(part.read_bytes() for part in parts)]))
    if joined != content:
        replace_file(path, joined)
    for part in parts:
        part.unlink()


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def read_lines(folder: Path) -> dict[str, dict[str, Any]]:
    """What is finished, by name; of several lines the last, and none that cannot be read."""
    path, lines = lines_file(folder), {}
    content = path.read_bytes() if path.is_file() else b""
    for text in _whole_lines(content).decode("utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            line = json.loads(text)
            lines[line["name"]] = line
    return lines
