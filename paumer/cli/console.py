"""What all commands print with and write with."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paumer.arguments import at_least_one

T = TypeVar("T")
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


def above_zero(number: float, name: str) -> float:
    """The number, when it is finite and above zero."""
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {number:g}: give a number above 0")
    return number


def call(function: Callable[..., T], options: object, **more: object) -> T:
    """What a public function gives for the options of its arguments' names, and for ``more``."""
    names = [name for name in signature(function).parameters if hasattr(options, name)]
    return function(**{**{name: getattr(options, name) for name in names}, **more})


def set_threads(threads: int | None) -> None:
    """Let torch use so many CPU threads; None leaves it as it is."""
    if threads is not None:
        import torch

        torch.set_num_threads(at_least_one(threads, "threads"))


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the error stream: call what it gives with done and total."""
    with step_progress() as update:
        yield lambda done, total: update(title, done, total)


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work of several parts: call it with the part's name, done and total."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    with Progress(text, *columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(title: str, done: int, total: int) -> None:
            if done < bar.tasks[0].completed:  # Another part begins.
                bar.reset(task)
            bar.update(task, description=title, completed=done, total=total)

        yield update


@contextmanager
def training_progress() -> Iterator[Callable[[int, int, Mapping[str, float]], None]]:
    """How far a training is: a bar in a terminal, elsewhere a line every minute."""
    shown = time.monotonic()
    with step_progress() as show:

        def update(done: int, total: int, metrics: Mapping[str, float]) -> None:
            nonlocal shown
            loss, now = f"loss {metrics['loss']:.3f}", time.monotonic()
            show(f"training, {loss}", done, total)
            if not errors.is_terminal and now - shown >= LOG_EVERY:
                shown = now
                left = timedelta(seconds=round(metrics["seconds_left"]))
                rate = f"{metrics['images_per_second']:.1f} images/s"
                say(f"step {done} of {total}: {loss}, {rate}, {left} left")

        yield update


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print plain text as a table without lines; all columns but the first stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, title in enumerate(titles):
        table.add_column(escape(title), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
