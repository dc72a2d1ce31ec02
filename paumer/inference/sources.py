"""What is to be segmented: files, folders and patterns as images with names, or videos."""

import glob
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paumer.data.images import SUFFIXES

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg")
"""How the names of videos end, in lower case."""


@dataclass(frozen=True)
class Source:
    """A file to segment, and the path (without suffix) of its results below the output folder."""

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        """Whether it is a video, by its name."""
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_sources(texts: Sequence[str | Path], leave_out: Path | None = None) -> list[Source]:
    """The images and videos meant by files, folders and patterns such as ``streets/*.jpg``.

    Folders are searched recursively, and the results mirror them. What lies below ``leave_out``,
    the output folder, is not taken for input.
    """
    found: dict[Path, Source] = {}
    for text in texts:
        for source in _find(str(text)):
            inside = leave_out is not None and _is_below(source.path, leave_out)
            if not inside or Path(text) == source.path:
                found.setdefault(source.path, source)
    return _distinct(found.values())


def _find(text: str) -> list[Source]:
    path = Path(text)
    if path.is_file():
        return [Source(path, path.stem)]
    if path.is_dir():
        return _below(path, (p for p in path.rglob("*")), f'no images or videos in "{text}"')
    if glob.has_magic(text):
        root = Path(*_plain_parts(path))
        matches = (Path(name) for name in glob.glob(text, recursive=True))  # noqa: PTH207
        return _below(root, matches, f'nothing matches "{text}"')
    raise FileNotFoundError(f'there is no file or folder "{text}"')


def _below(root: Path, paths: Iterable[Path], complaint: str) -> list[Source]:
    suffixes = (*SUFFIXES, *VIDEO_SUFFIXES)
    files = sorted(p for p in paths if p.suffix.lower() in suffixes and p.is_file())
    if not files:
        raise FileNotFoundError(f"{complaint} (known are {', '.join(suffixes)})")
    return [Source(p, p.relative_to(root).with_suffix("").as_posix()) for p in files]


def _plain_parts(path: Path) -> list[str]:
    """The parts of a pattern before the first that has a wildcard."""
    parts = []
    for part in path.parts:
        if glob.has_magic(part):
            break
        parts.append(part)
    return parts


def _distinct(sources: Iterable[Source]) -> list[Source]:
    """The sources, with names that no two share: a.png and a.jpg become a.png and a.jpg."""
    sources = list(sources)
    times = Counter(source.name for source in sources)
    named = [
        Source(s.path, s.name if times[s.name] == 1 else f"{s.name}{s.path.suffix}")
        for s in sources
    ]
    twice = [name for name, count in Counter(s.name for s in named).items() if count > 1]
    if twice:
        both = [str(s.path) for s in named if s.name == twice[0]]
        raise ValueError(
            f"the results of {both[0]} and {both[1]} would overwrite each other: "
            f"give their folder instead, or one --out each"
        )
    return named


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
