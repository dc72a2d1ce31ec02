"""What all commands print with and write with."""

import csv
import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paumer.disk import replace_file

if TYPE_CHECKING:
    from paumer.cli.options import TilingOptions
    from paumer.inference.tiles import Inference

LOG_EVERY = 60.0
"""Seconds between lines of progress where there is no terminal."""

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


def tiling(options: "TilingOptions") -> "Inference":
    """How images are cut, repeated and batched."""
    from paumer.inference.tiles import Inference

    names = ("window", "stride", "scales", "flip", "batch")
    return Inference(**{name: getattr(options, name) for name in names})


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


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the error stream: call what it gives with done and total."""
    with named_progress() as update:
        yield lambda done, total: update(title, done, total)


@contextmanager
def named_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work of several parts: call it with the part's name, done and total."""
    with _bar() as bar:
        task = bar.add_task("", total=None)
        titles = [""]

        def update(title: str, done: int, total: int) -> None:
            if title != titles[-1]:
                titles.append(title)
                bar.reset(task, description=title)
            bar.update(task, completed=done, total=total)

        yield update


@contextmanager
def training_progress() -> Iterator[Callable[[int, int, Mapping[str, float]], None]]:
    """How far a training is: a bar in a terminal, elsewhere a line every minute."""
    shown = time.monotonic()
    with _bar() as bar:
        task = bar.add_task("training", total=None)

        def update(done: int, total: int, metrics: Mapping[str, float]) -> None:
            nonlocal shown
            loss, now = f"loss {metrics['loss']:.3f}", time.monotonic()
            bar.update(task, completed=done, total=total, description=f"training, {loss}")
            if not errors.is_terminal and now - shown >= LOG_EVERY:
                shown = now
                left = timedelta(seconds=round(metrics["seconds_left"]))
                rate = f"{metrics['images_per_second']:.1f} images/s"
                say(f"step {done} of {total}: {loss}, {rate}, {left} left")

        yield update


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )


def new_table(*titles: str) -> Table:
    """A table without lines; all columns but the first stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left")
    return table


def write_json(path: Path, values: object) -> None:
    """Write values as readable JSON."""
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object to a line."""
    _write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
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
