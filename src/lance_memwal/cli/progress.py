"""Progress of long work, on standard error, gone when the work is done.

Owns the bars and their columns. Invariant: nothing is shown where standard error is no terminal, or with `--json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lance_memwal.compact.reports import Progress as Told

__all__ = ["file_bar", "step_bars", "working"]


class _Rate(ProgressColumn):
    """How much is done per second."""

    def __init__(self, unit: str = "") -> None:
        super().__init__()
        self._unit = f" {unit}" if unit else ""

    def render(self, task: Task) -> Text:
        """The rate so far, as text."""
        done, seconds = task.fields.get("counted", task.completed), task.finished_time or task.elapsed
        return Text(f"{done / seconds:,.0f}{self._unit}/s" if done and seconds else "")


def _bars(*columns: ProgressColumn, hidden: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)


@contextmanager
def step_bars(unit: str, *, hidden: bool) -> Iterator[Told]:
    """A callback that shows a bar per kind of step, with rate and remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), _Rate(unit))
    with _bars(*columns, TimeRemainingColumn(), hidden=hidden) as bars:
        tasks: dict[str, object] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield told


@contextmanager
def file_bar(what: str, total_bytes: int, *, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A callback for bytes and rows so far: bytes say how much is left, rows how fast it goes."""
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[counted]:,} rows"))
    with _bars(*columns, _Rate("rows"), TimeRemainingColumn(), hidden=hidden) as bars:
        task = bars.add_task(what, total=total_bytes or None, counted=0)
        yield lambda done_bytes, rows: bars.update(task, completed=done_bytes, counted=rows)


@contextmanager
def working(what: str, *, hidden: bool) -> Iterator[None]:
    """A sign of life for work that cannot tell how much is left."""
    with _bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), hidden=hidden) as bars:
        bars.add_task(what, total=None)
        yield
