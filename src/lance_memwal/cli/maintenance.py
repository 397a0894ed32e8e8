"""Commands that maintain a table: maintain, flush, compact, gc, verify, repair.

Owns no engine logic: each command is one call of the facade.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import typer

from lance_memwal.cli.options import Json, Options, Uri, open_for
from lance_memwal.cli.output import note, print_json, problems, rows_as_table, show, step_bars, working
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.rows.text_values import to_plain
from lance_memwal.upkeep.maintain import DEFAULT_VERSIONS

_KINDS = {
    "entry": "log_entries",
    "sstable": "sstables",
    "orphan": "orphans",
    "manifest": "manifests",
    "staging": "staging_files",
}


def maintain(
    uri: Uri,
    defer_indexes: Annotated[
        bool, typer.Option("--defer-indexes", help="Leave the indexes of the base table as they are.")
    ] = False,
    base_files: Annotated[bool, typer.Option(help="Make one file of many small ones.")] = True,
    versions_days: Annotated[
        float, typer.Option(help="Remove versions of the base table that are older and have no tag.", min=0)
    ] = DEFAULT_VERSIONS.days,
    all_versions: Annotated[bool, typer.Option("--all-versions", help="Remove no version of the base table.")] = False,
    grace_seconds: Annotated[float, typer.Option(help="Keep what became unneeded more recently.", min=0)] = 3600,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Keep a table healthy: flush, compact, update indexes, merge small files, remove old versions, collect."""
    table = open_for(uri, storage_option)
    with step_bars("steps", hidden=json) as progress:
        report = table.maintain(
            indexes="defer" if defer_indexes else "catch_up",
            base_files=base_files,
            versions=None if all_versions else timedelta(days=versions_days),
            grace_seconds=grace_seconds,
            progress=progress,
        )
    answer = {
        "flushed_rows": report.flushed.rows,
        "generations": report.compaction.generations,
        "indexes": list(report.indexes),
        "files_removed": report.files_removed,
        "files_added": report.files_added,
        "versions_removed": report.versions_removed,
        "objects_removed": len(report.garbage.objects),
        "seconds": report.seconds,
    }
    if json:
        print_json({**answer, "postponed": report.postponed, "skipped": report.flushed.skipped})
    else:
        show({**answer, "indexes": ", ".join(report.indexes) or "none"}, as_json=False)
        for step, reason in (report.postponed | report.flushed.skipped).items():
            note(f"{step} was left for the next time: {reason}")
    for shard_id in report.garbage.refused:
        note(f"shard {shard_id} was left alone, it is damaged: memwal verify tells what to do")
    if report.garbage.refused:
        raise typer.Exit(1)


def flush(
    uri: Uri,
    idle_seconds: Annotated[
        float, typer.Option(help="Leave shards alone whose newest entry is younger.")
    ] = IDLE_SECONDS,
    force: Annotated[
        bool, typer.Option("--force", help="Also shards that seem to have a writer: it is fenced.")
    ] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Turn logs that no writer owns into SSTables."""
    table = open_for(uri, storage_option)
    with working("flushing", hidden=json):
        report = table.flush(idle_seconds=idle_seconds, force=force)
    answer = {"sstables": report.generations, "rows": report.rows}
    if json:
        print_json({**answer, "skipped": report.skipped})
        return
    show({**answer, "skipped_shards": len(report.skipped)}, as_json=False)
    for shard_id, reason in report.skipped.items():
        note(f"{shard_id} was left alone: {reason}")


def compact(
    uri: Uri,
    max_generations: Annotated[int | None, typer.Option(help="At most so many SSTables per shard.", min=1)] = None,
    flush: Annotated[bool, typer.Option("--flush", help="First turn logs that no writer owns into SSTables.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Fold SSTables into the base table."""
    table = open_for(uri, storage_option)
    with step_bars("SSTables", hidden=json) as progress:
        report = table.compact(max_generations=max_generations, flush=flush, progress=progress)
    folded = {name: value for name, value in to_plain(report).items() if name != "shards"}
    if json:
        print_json({"generations": report.generations, **folded})
        return
    waiting, left = folded.pop("waiting_for_indexes"), folded.pop("in_log_only")
    show({"generations": report.generations, **folded}, as_json=False)
    for shard_id, reason in left.items():
        note(f"{shard_id} has rows in its log: {reason if flush else 'run again with --flush'}")
    for name, count in waiting.items():
        note(f"{count} compacted SSTables are kept until index {name} has their rows: memwal maintain")


def gc(
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete", help="Really delete; without it nothing is removed.")] = False,
    grace_seconds: Annotated[float, typer.Option(help="Keep what became unneeded more recently.", min=0)] = 3600,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Show what nobody needs any more, and delete it if asked; exit status 1 if a damaged shard was left alone."""
    table = open_for(uri, storage_option)
    with step_bars("shards", hidden=json) as progress:
        report = table.gc(dry_run=not delete, grace_seconds=grace_seconds, progress=progress)
    answer = {"dry_run": report.dry_run, "objects": len(report.objects), "bytes": report.size_bytes}
    answer |= {name: report.count(kind) for kind, name in _KINDS.items()}
    answer |= {"pinned": report.pinned, "refused_shards": len(report.refused), "objects_left": report.objects_left}
    show(answer, as_json=json)
    if not delete and report.objects and not json:
        note("nothing was deleted: run again with --delete")
    for shard_id in report.refused:
        note(f"shard {shard_id} was left alone, it is damaged: memwal verify tells what to do")
    if report.refused:
        raise typer.Exit(1)


def verify(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Check every invariant; exit status 1 if one is broken."""
    table = open_for(uri, storage_option, for_repair=True)
    with working("verifying", hidden=json):
        report = table.verify()
    answer = {"ok": report.ok, "shards": report.shards, "entries": report.entries, "sstables": report.sstables}
    found = [to_plain(problem) for problem in report.problems]
    if json:
        print_json({**answer, "problems": found})
    else:
        problems(found)
        show({**answer, "problems": len(found)}, as_json=False)
    if not report.ok:
        raise typer.Exit(1)


def repair(
    uri: Uri,
    apply: Annotated[bool, typer.Option("--apply", help="Really repair; without it nothing is changed.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up entries that are damaged in the middle of a log.")
    ] = False,
    restored: Annotated[
        Literal["keep_base"] | None,
        typer.Option("--restored", help="Accept a base table that was restored to before a compaction."),
    ] = None,
    reused_ids: Annotated[
        Literal["values", "null"] | None,
        typer.Option("--reused-ids", help="Show or drop values of columns whose field id was reused."),
    ] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Show what can be repaired, and repair it if asked; exit status 1 if problems are left."""
    table = open_for(uri, storage_option, for_repair=True)
    with working("repairing" if apply else "looking", hidden=json):
        report = table.repair(dry_run=not apply, restored=restored, reused_ids=reused_ids, accept_loss=accept_loss)
    actions, left = [to_plain(action) for action in report.actions], [to_plain(problem) for problem in report.problems]
    if json:
        print_json({"dry_run": report.dry_run, "actions": actions, "problems": left})
    else:
        if actions:
            rows_as_table(actions, {"what": "repair", "done": "done"})
        problems(left)
        if not actions and not left:
            note("nothing to repair")
        elif not apply and actions:
            note("nothing was changed: run again with --apply")
    if left:
        raise typer.Exit(1)
