"""What is to be segmented: files, folders and patterns as images with names, or videos."""

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from paumer.data.images import SUFFIXES

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg")
"""How the names of videos end, in lower case."""


@dataclass(frozen=True)
class Source:
    """A file to segment, and the path (without suffix) of its results below the output folder.

    ``stream`` is the device or the address where it is not a file.
    """

    path: Path
    name: str
    stream: str = ""

    @property
    def is_video(self) -> bool:
        """Whether it is a video, by its name, or a camera."""
        return bool(self.stream) or self.path.suffix.lower() in VIDEO_SUFFIXES


def find_sources(texts: Sequence[str | Path], leave_out: Path | None = None) -> list[Source]:
    """The images and videos meant by files, folders and patterns such as ``streets/*.jpg``.

    Folders are searched recursively, and the results mirror them. What lies below ``leave_out``,
    the output folder, is not taken for input.
    """
    sources: dict[Path, Source] = {}
    for text in texts:
        for source in _find(str(text)):
            below = leave_out and source.path.resolve().is_relative_to(leave_out.resolve())
            if not below or Path(text) == source.path:
                sources.setdefault(source.path, source)
    return _distinct(list(sources.values()))


def _find(text: str) -> list[Source]:
    path = Path(text)
    if "://" in text:
        return [_stream(text)]
    if path.is_char_device():
        return [Source(path, path.name, text)]
    if path.is_file():
        return [Source(path, _name(Path(path.name)))]
    if path.is_dir():
        return _below(path, path.rglob("*"), f'no images or videos in "{text}"')
    if glob.has_magic(text):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        matches = (Path(name) for name in glob.glob(text, recursive=True))  # noqa: PTH207
        return _below(root, matches, f'nothing matches "{text}"')
    if text.startswith("/dev/"):
        raise FileNotFoundError(
            f'there is no camera "{text}": ls /dev/video* shows those there are'
        )
    raise FileNotFoundError(f'"{text}" is neither a file nor a folder')


def _stream(address: str) -> Source:
    scheme, _, rest = address.partition("://")
    if scheme.lower() not in ("rtsp", "rtsps"):
        raise ValueError(
            f'"{address}" is not opened: download it and give the file '
            f"(of addresses only rtsp:// is read)"
        )
    place = rest.rpartition("@")[2]  # Without the password.
    name = re.sub(r"[^\w.-]+", "-", place.partition("?")[0]).strip(".-") or "stream"
    return Source(Path(f"{scheme}:/{place}"), name, address)


def _below(root: Path, paths: Iterable[Path], complaint: str) -> list[Source]:
    suffixes = (*SUFFIXES, *VIDEO_SUFFIXES)
    files = sorted(p for p in paths if p.suffix.lower() in suffixes and p.is_file())
    if not files:
        raise FileNotFoundError(f"{complaint} (known are {', '.join(suffixes)})")
    return [Source(p, _name(p.relative_to(root))) for p in files]


def _name(path: Path) -> str:
    """The path without its suffix, of which it keeps what would be dots alone.

    Below a pattern with ``..`` it is the file's name alone: results lie in their folder.
    """
    stem = path.stem if path.stem.strip(".") else path.name
    return stem if ".." in path.parts else path.with_name(stem).as_posix()


def _distinct(sources: Sequence[Source]) -> list[Source]:
    """The sources, with names that no two share: a.png beside a.jpg keeps its suffix."""
    times = Counter(source.name for source in sources)
    named: dict[str, Source] = {}
    for source in sources:
        name, path = source.name, source.path
        name = name if times[name] == 1 else f"{name}{path.suffix}"
        if name in named:
            raise ValueError(
                f"the results of {named[name].path} and {path} would overwrite each other: "
                f"give their folder instead, or one --out each"
            )
        named[name] = replace(source, name=name)
    return list(named.values())
