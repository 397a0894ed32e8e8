"""Commands that maintain a table: flush, compact, gc, verify, repair; and demo and bench.

Owns no engine logic: each command is one call of the facade. Called by: `memwal.cli`.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bars

from memwal.cli.options import Json, Options, Uri, open_for
from memwal.cli.output import note, rows_as_json, rows_as_table, show, to_plain
from memwal.errors import InvalidInputError
from memwal.reports import Progress

_KINDS = {
    "entry": "log_entries",
    "sstable": "sstables",
    "orphan": "orphans",
    "manifest": "manifests",
    "staging": "staging_files",
}
__all__ = ["bench", "compact", "demo", "flush", "gc", "repair", "verify"]


@contextmanager
def _bars(*, hidden: bool) -> Iterator[Progress]:
    """Progress on standard error, gone when the work is done."""
    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=hidden or not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield told


def flush(
    uri: Uri,
    idle_seconds: Annotated[float, typer.Option(help="Leave shards alone whose newest entry is younger.")] = 60,
    force: Annotated[
        bool, typer.Option("--force", help="Also shards that seem to have a writer: it is fenced.")
    ] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Turn logs that no writer owns into generations."""
    report = open_for(uri, storage_option).flush(idle_seconds=idle_seconds, force=force)
    show({"generations": report.generations, "rows": report.rows, "skipped": report.skipped}, as_json=json)


def compact(
    uri: Uri,
    max_generations: Annotated[int | None, typer.Option(help="At most so many generations.", min=1)] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Fold generations into the base table."""
    table = open_for(uri, storage_option)
    with _bars(hidden=json) as progress:
        report = table.compact(max_generations=max_generations, progress=progress)
    show(
        {"generations": report.generations, **{k: v for k, v in to_plain(report).items() if k != "shards"}},
        as_json=json,
    )


def gc(
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete", help="Really delete; without it nothing is removed.")] = False,
    grace_seconds: Annotated[float, typer.Option(help="Keep what became unneeded more recently.", min=0)] = 3600,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Show what nobody needs any more, and delete it if asked."""
    table = open_for(uri, storage_option)
    with _bars(hidden=json) as progress:
        report = table.gc(dry_run=not delete, grace_seconds=grace_seconds, progress=progress)
    answer = {"dry_run": report.dry_run, "objects": len(report.objects), "bytes": report.size_bytes}
    answer |= {name: report.count(kind) for kind, name in _KINDS.items()}
    show({**answer, "refused_shards": len(report.refused), "objects_left": report.objects_left}, as_json=json)
    if not delete and report.objects and not json:
        note("nothing was deleted: run again with --delete")


def verify(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Check every invariant; exit status 1 if one is broken."""
    report = open_for(uri, storage_option).verify()
    records = [to_plain(problem) for problem in report.problems]
    if json:
        show({"ok": report.ok, "shards": report.shards, "entries": report.entries, "problems": records}, as_json=True)
    elif report.ok:
        show(
            {"ok": True, "shards": report.shards, "entries": report.entries, "sstables": report.sstables}, as_json=False
        )
    else:
        rows_as_table(records, ["where", "what", "remedy"], "problems")
    if not report.ok:
        raise typer.Exit(1)


def repair(
    uri: Uri,
    apply: Annotated[bool, typer.Option("--apply", help="Really repair; without it nothing is changed.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Show what can be repaired, and repair it if asked."""
    report = open_for(uri, storage_option).repair(dry_run=not apply)
    records = [to_plain(action) for action in report.actions]
    if json:
        rows_as_json(records)
    else:
        rows_as_table(records, ["where", "what", "done"], "repairs")
        if not apply and records:
            note("nothing was changed: run again with --apply")


def demo() -> None:
    """Run the story of the README on a temporary table."""
    from memwal import demo as story

    raise typer.Exit(story.main([]))


def bench(
    only: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
) -> None:
    """Measure side by side with pylance's own implementation (from a checkout of the project)."""
    if importlib.util.find_spec("benchmarks") is None:
        raise InvalidInputError("the benchmarks are not installed: run this from a checkout of the project")
    sys.argv = ["benchmarks", "--only", only, *(["--quick"] if quick else [])]
    runpy.run_module("benchmarks", run_name="__main__")
