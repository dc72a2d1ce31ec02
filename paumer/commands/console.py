"""What all commands print with and write with."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paumer.disk import replace_file

if TYPE_CHECKING:
    from paumer.study.tradeoff import Measurement

console = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True)


def complain(text: str) -> None:
    """Print plain text to the error stream."""
    errors.print("[bold red]error:[/]", escape(text), highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print plain text, unwrapped."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def at_least_one(number: int, name: str) -> int:
    """The number, when it is at least one."""
    if number < 1:
        raise ValueError(f"{name} is {number}: give at least 1")
    return number


def above_zero(number: float, name: str) -> float:
    """The number, when it is finite and above zero."""
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {number:g}: give a number above 0")
    return number


def pick_device(name: str) -> str:
    """The device of that name; ``auto`` takes a GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'cannot use device "{name}": {reason}') from error
    return name


def spell_points(
    texts: Sequence[str],
    points: "Mapping[str, Measurement]",
    early_exit: bool,
    criterion: str | None,
) -> list[str]:
    """The texts with operating points' names replaced by their configurations."""
    for text in texts:
        point = points.get(text)
        if point and point.early_exit and not early_exit:
            raise ValueError(f'the operating point "{text}" exits early: add --early-exit')
        if point and criterion is None and point.criterion != "entropy":
            own = point.criterion
            raise ValueError(f'the operating point "{text}" pauses by {own}: add --criterion {own}')
    return [str(points[text].pause) if text in points else text for text in texts]


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the error stream: call what it gives with done and total."""
    with named_progress() as update:
        yield lambda done, total: update(title, done, total)


@contextmanager
def named_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work of several parts: call it with the part's name, done and total."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        titles = [""]

        def update(title: str, done: int, total: int) -> None:
            if title != titles[-1]:
                titles.append(title)
                bar.reset(task, description=title)
            bar.update(task, completed=done, total=total)

        yield update


def new_table(*titles: str) -> Table:
    """A table without lines; all columns but the first stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left")
    return table


def write_json(path: Path, values: Any) -> None:
    """Write values as readable JSON."""
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object to a line."""
    _write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as CSV; the first row that has a value names its column."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    content = io.StringIO(newline="")
    writer = csv.DictWriter(content, names)
    writer.writeheader()
    writer.writerows(rows)
    _write(path, content.getvalue())


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.encode())
