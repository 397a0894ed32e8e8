"""Every command through a real process: what it prints, where, and its exit status."""

import datetime
import json
import subprocess
import uuid
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import lance_memwal as mw
from lance_memwal.cli import app
from tests.kit.cli_process import COMMAND, answer, on_a_terminal, one_line, rows, run


def shard_of(uri: Path) -> str:
    return mw.open_table(str(uri)).shards()[0].shard_id


def test_create_put_scan_and_get_make_a_round_trip(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.csv"
    data.write_text("id,name\n1,ann\n2,bob\n")
    made = answer(
        "create", uri, "--columns", "id:int64,name:string", "--primary-key", "id", "--sharding", "bucket(id,2)"
    )
    assert made["primary_key"] == ["id"]
    assert answer("put", uri, data)["rows"] == 2
    assert sorted(row["name"] for row in rows("scan", uri)) == ["ann", "bob"]
    assert answer("get", uri, 2) == {"id": 2, "name": "bob"}
    assert "bob" in run("scan", uri).stdout


@pytest.mark.parametrize("kind", ["parquet", "json", "arrow", "arrows", "csv"])
def test_put_reads_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    uri, path = tmp_path / "t", tmp_path / f"data.{kind}"
    data = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    mw.create_table(str(uri), data.schema, primary_key="id", writer_defaults={"fsync": False})
    if kind == "parquet":
        pq.write_table(data, path)
    elif kind == "arrow":
        with ipc.new_file(path, data.schema) as sink:
            sink.write_table(data)
    elif kind == "arrows":
        with ipc.new_stream(path, data.schema) as sink:
            sink.write_table(data)
    elif kind == "csv":
        path.write_text("id,name\n1,a\n2,b\n3,c\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
    assert answer("put", uri, path, "--batch-rows", 2)["rows"] == 3
    assert answer("scan", uri, "--count") == {"rows": 3}


def test_enable_puts_a_write_path_in_front_of_a_lance_table(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"x": [1, 2]}), tmp_path / "plain")
    assert answer("enable", tmp_path / "plain", "--sharding", "unsharded")["primary_key"] == []
    assert answer("scan", tmp_path / "plain", "--count") == {"rows": 2}


def test_tables_may_say_what_a_later_write_of_a_key_does(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.csv"
    columns = ("--columns", "id:int64,ts:int64,name:string", "--primary-key", "id")
    assert answer("create", tmp_path / "last", *columns)["merge"] == "none"
    assert answer("create", uri, *columns, "--merge", "last-write:ts")["merge"] == "last-write:ts"
    assert mw.open_table(str(uri)).merge == mw.LastWrite(sequence="ts")
    for text in ("id,ts,name\n1,5,new\n", "id,ts,name\n1,4,late\n2,1,two\n"):
        data.write_text(text)
        answer("put", uri, data)
    assert {row["id"]: row["name"] for row in rows("scan", uri)} == {1: "new", 2: "two"}
    assert "--sequence" in run("delete", uri, 1, status=1).stderr  # which delete is the later one?
    answer("delete", uri, 1, "--sequence", 4)
    assert answer("scan", uri, "--count") == {"rows": 2}
    answer("delete", uri, 1, "--sequence", 6)
    assert answer("scan", uri, "--count") == {"rows": 1}
    assert "last-write" in run("delete", tmp_path / "last", 1, "--sequence", 6, status=1).stderr

    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "plain")
    assert answer("enable", tmp_path / "plain", "-p", "id", "--merge", "first-row")["merge"] == "first-row"
    assert mw.open_table(str(tmp_path / "plain")).merge == mw.FirstRow()


def test_update_and_delete_take_a_filter(table: Path) -> None:
    before = {row["id"]: row for row in rows("scan", table)}
    name = next(column for column in before[1] if column != "id")
    assert answer("update", table, "--where", "id < 2", "--set", f"{name} = null") == {"updated_rows": 2}
    assert answer("delete", table, "--where", "id >= 3") == {"deleted_rows": len(before) - 3}
    assert {row["id"]: row for row in rows("scan", table)} == {
        **{key: {**before[key], name: None} for key in (0, 1)},
        2: before[2],
    }
    assert run("delete", table, 1, "--where", "true", status=2)
    assert run("update", table, "--where", "true", "--set", "nothing", status=2)


def test_delete_takes_keys_and_files(table: Path, tmp_path: Path) -> None:
    (tmp_path / "gone.csv").write_text("id\n3\n4\n")
    assert answer("delete", table, 0, "--file", tmp_path / "gone.csv") == {"deleted_keys": 3}
    assert sorted(row["id"] for row in rows("scan", table)) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.uuid(), uuid.UUID(int=77), str(uuid.UUID(int=77))),
        (pa.binary(3), b"\x00\xffa", "00ff61"),
        (pa.date32(), datetime.date(2026, 1, 31), "2026-01-31"),
        (
            pa.timestamp("us", "UTC"),
            datetime.datetime(2026, 1, 31, 5, tzinfo=datetime.UTC),
            "2026-01-31T07:00:00+02:00",
        ),
        (pa.timestamp("s"), datetime.datetime(2026, 1, 31, 5), "2026-01-31 05:00:00"),
        (pa.decimal128(6, 2), Decimal("-1.50"), "-1.5"),
    ],
    ids=str,
)
def test_keys_of_every_type_are_parsed(kind: pa.DataType, key: Any, text: str, tmp_path: Path) -> None:
    schema = pa.schema([("k", kind), ("part", pa.string()), ("v", pa.int64())])
    options = {"writer_defaults": {"fsync": False}}
    for name, columns in (("one", ["k"]), ("two", ["k", "part"])):
        made = mw.create_table(str(tmp_path / name), schema, primary_key=columns, **options)
        with made.writer() as writer:
            writer.put([{"k": key, "part": "a", "v": 7}])
    runner = CliRunner()
    one = runner.invoke(app, ["get", str(tmp_path / "one"), "--json", "--", text])
    two = runner.invoke(app, ["get", str(tmp_path / "two"), "--json", "--", json.dumps([text, "a"])])
    assert [json.loads(found.stdout)["v"] for found in (one, two)] == [7, 7]
    wrong = runner.invoke(app, ["get", str(tmp_path / "one"), "--", "no such thing"])
    assert isinstance(wrong.exception, mw.InvalidInputError)
    assert "no such value" in str(wrong.exception)


def test_scan_projects_filters_limits_and_explains(table: Path) -> None:
    assert rows("scan", table, "--columns", "id", "--filter", "id > 2", "--limit", 1)[0].keys() == {"id"}
    assert "base table version" in run("scan", table, "--explain").stdout
    ordered = rows("scan", table, "--columns", "id", "--order-by", "-name", "--limit", 2)
    assert [row["id"] for row in ordered] == [4, 3]


def test_search_by_text_and_by_vector(table: Path) -> None:
    assert rows("search", table, "--text", "name3")[0]["id"] == 3
    assert rows("search", table, "--vector", "[4.2, 0]", "-k", 1)[0]["id"] == 4
    pages = [rows("search", table, "--vector", "[4.2, 0]", "-k", 2, "--offset", offset) for offset in (0, 2)]
    assert [row["id"] for page in pages for row in page] == [
        row["id"] for row in rows("search", table, "--vector", "[4.2, 0]", "-k", 4)
    ]
    far = rows("search", table, "--vector", "[4.2, 0]", "-k", 3, "--distance-range", "1:", "--metric", "l2")
    assert far
    assert min(row["_distance"] for row in far) >= 1
    assert rows("search", table, "--vector", "[4.2, 0]", "--distance-range", ":0.01") == []


def test_shards_stats_and_manifest_say_what_is_there(table: Path) -> None:
    (shard,) = rows("shards", table)
    assert shard["generations"] == [1]
    assert shard["shard_id"] in run("shards", table).stdout
    assert answer("stats", table)["shards"][0]["uncompacted_rows"] == 5
    assert answer("manifest", table)["current_generation"] == 2
    assert "not in the base table yet" in run("stats", table).stdout
    assert "_gen_1" in run("manifest", table).stdout


def test_the_log_can_be_listed_shown_and_followed(table: Path) -> None:
    assert rows("wal", "list", table)[0]["rows"] == 5
    assert len(rows("wal", "show", table, 1)) == 5
    assert "name3 common" in run("wal", "show", table, 1).stdout
    follower = subprocess.Popen(
        [*COMMAND, "wal", "follow", str(table), "--count", "2", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stderr is not None
    assert "following shard" in follower.stderr.readline()
    with mw.open_table(str(table)).writer() as writer:
        writer.put({"id": [9], "name": ["new"], "vec": [[0, 0]]})
        out, _ = follower.communicate(timeout=60)
    followed = [json.loads(line) for line in out.splitlines()]
    assert [entry["kind"] for entry in followed] == ["sentinel", "rows"]


def test_flush_compact_gc_verify_and_repair_maintain_a_table(table: Path) -> None:
    appender = mw.WalAppender.open(str(table), shard_of(table), fsync=False)
    appender.append(
        pa.record_batch({"id": [7], "name": ["tail"], "vec": pa.array([[1, 1]], pa.list_(pa.float32(), 2))})
    )
    assert answer("flush", table, "--idle-seconds", 0)["rows"] == 1
    assert answer("compact", table)["generations"] == 2
    assert lance.dataset(str(table)).count_rows() == 6
    assert answer("gc", table, "--grace-seconds", 0)["dry_run"] is True
    assert answer("gc", table, "--grace-seconds", 0, "--delete")["objects"] > 0
    assert answer("verify", table)["ok"] is True
    assert answer("repair", table) == {"dry_run": True, "actions": [], "problems": []}
    assert "nothing to repair" in run("repair", table).stderr
    assert answer("scan", table, "--count") == {"rows": 6}


def test_repair_decides_about_reused_field_ids(table: Path) -> None:
    for old, new in (("name", "label"), ("label", "text")):
        lance.dataset(str(table)).alter_columns({"path": old, "name": new})
    lance.dataset(str(table)).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert not mw.open_table(str(table)).verify().ok
    assert "reused_ids" in run("verify", table, status=1).stdout
    done = answer("repair", table, "--reused-ids", "values", "--apply")
    assert [action["done"] for action in done["actions"]] == [True]
    assert answer("verify", table)["ok"] is True
    assert {row["text"] for row in mw.open_table(str(table)).scan().to_table().to_pylist()} == {
        f"name{i} common" for i in range(5)
    }


def test_compact_says_what_is_in_a_log_only_and_folds_it_if_asked(table: Path) -> None:
    with mw.open_table(str(table)).writer(compaction=None) as writer:
        writer.put({"id": [7], "name": ["tail"], "vec": [[1, 1]]})
        assert list(answer("compact", table)["in_log_only"]) == [shard_of(table)]
        told = run("compact", table).stderr
        assert "has rows in its log: run again with --flush" in told
        assert "seconds old" in run("compact", table, "--flush").stderr
    assert answer("compact", table, "--flush")["in_log_only"] == {}
    assert lance.dataset(str(table)).count_rows() == 6


def test_maintain_does_every_step_and_says_what_it_did(table: Path) -> None:
    lance.dataset(str(table)).create_scalar_index("name", "BTREE", name="by_name")
    for number in range(3):
        with mw.open_table(str(table)).writer(compaction=None) as writer:
            writer.put({"id": [20 + number], "name": ["x"], "vec": [[1, 1]]})
    run("compact", table)
    assert "kept until index by_name has their rows" in run("stats", table).stderr
    done = answer("maintain", table, "--versions-days", 0, "--grace-seconds", 0)
    assert done["indexes"] == ["by_name"]
    assert done["versions_removed"] > 0
    assert done["objects_removed"] > 0
    assert (done["postponed"], done["skipped"]) == ({}, {})
    assert answer("stats", table)["waiting_for_indexes"] == {}
    assert "indexes" in run("maintain", table, "--defer-indexes", "--no-base-files", "--all-versions").stdout
    assert "steps" in on_a_terminal("maintain", table)
    assert answer("verify", table)["ok"] is True


def test_a_table_that_is_created_without_options_replaces_rows_by_key(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.csv"
    data.write_text("id,name\n1,ann\n2,bob\n")
    assert answer("create", uri, "--columns", "id:int64,name:string", "-p", "id")["sharding"] == "unsharded"
    run("put", uri, data)
    run("put", uri, data)
    run("delete", uri, 2)
    assert rows("scan", uri) == [{"id": 1, "name": "ann"}]


def test_tables_with_manual_shards_ask_for_the_shard(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.csv"
    data.write_text("id\n1\n")
    columns = ("--columns", "id:int64", "-p", "id", "--sharding", "manual")
    assert "allow_keys_across_shards=True" in one_line(run("create", uri, *columns, status=1))
    run("create", uri, *columns, "--allow-keys-across-shards")
    run("put", uri, data, "--shard", "new")
    assert "--shard new" in one_line(run("put", uri, data, status=1))
    assert "--shard new" in one_line(run("delete", uri, 1, status=1))
    (shard,) = rows("shards", uri)
    run("delete", uri, 1, "--shard", shard["shard_id"])
    assert rows("scan", uri) == []


def test_enable_sets_a_key_that_the_rows_have(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    lance.write_dataset(pa.table({"id": [1, 2, 2], "part": ["a", "a", "b"]}), uri)
    assert "more than once: 2" in one_line(run("enable", uri, "--primary-key", "id", status=1))
    assert lance.dataset(uri).version == 1
    made = answer("enable", uri, "--primary-key", "id,part", "--sharding", "bucket(id,2)")
    assert (made["primary_key"], made["sharding"]) == (["id", "part"], "bucket(id,2)")
    run("delete", uri, '[2, "b"]')
    assert answer("scan", uri, "--count") == {"rows": 2}


def test_text_files_are_read_with_the_types_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema([("code", pa.string()), ("n", pa.int8()), ("vec", pa.list_(pa.float32(), 2))])
    mw.create_table(str(tmp_path / "t"), schema, primary_key="code", sharding=mw.Unsharded())
    (tmp_path / "a.csv").write_text("code,n\n007,1\n")
    (tmp_path / "b.jsonl").write_text('{"code": "008", "n": 2, "vec": [1, 2]}\n')
    files = (tmp_path / "b.jsonl", tmp_path / "a.csv")
    assert "'vec'" in one_line(run("put", tmp_path / "t", *files, status=1))
    assert answer("put", tmp_path / "t", *files, "--missing", "null")["rows"] == 2
    assert answer("get", tmp_path / "t", "007") == {"code": "007", "n": 1, "vec": None}
    assert answer("get", tmp_path / "t", "008") == {"code": "008", "n": 2, "vec": [1, 2]}


def test_create_takes_the_columns_of_a_file(tmp_path: Path) -> None:
    empty = pa.schema([("id", pa.int32()), ("when", pa.timestamp("us"))]).empty_table()
    pq.write_table(empty, tmp_path / "empty.parquet")
    made = answer("create", tmp_path / "t", "--like", tmp_path / "empty.parquet", "-p", "id")
    assert made["columns"] == ["id", "when"]


def test_a_key_of_several_columns_is_an_array_or_an_object(tmp_path: Path) -> None:
    schema = pa.schema([("place", pa.string()), ("n", pa.int64())])
    made = mw.create_table(str(tmp_path / "t"), schema, primary_key=["place", "n"], sharding=mw.Unsharded())
    with made.writer(fsync=False) as writer:
        writer.put({"place": ["x"], "n": [-5]})
    assert answer("get", tmp_path / "t", '["x", -5]') == {"place": "x", "n": -5}
    assert answer("get", tmp_path / "t", '{"n": "-5", "place": "x"}') == {"place": "x", "n": -5}
    assert "JSON array" in one_line(run("get", tmp_path / "t", -5, status=1))


def test_a_negative_key_is_no_option(table: Path) -> None:
    assert "no row with key -3" in one_line(run("get", table, -3, status=1))
    assert answer("delete", table, -3) == {"deleted_keys": 1}


def test_not_a_number_is_null_in_json(tmp_path: Path) -> None:
    data = pa.table({"x": [float("nan"), float("inf"), 1.5]})
    mw.create_table(str(tmp_path / "t"), data)
    assert [row["x"] for row in rows("scan", tmp_path / "t")] == [None, None, 1.5]


def test_a_scan_for_people_stops_and_says_so_and_one_for_programs_does_not(tmp_path: Path) -> None:
    mw.create_table(str(tmp_path / "t"), pa.table({"x": range(50)}))
    assert "the first 20 rows" in run("scan", tmp_path / "t").stderr
    assert "50 rows" in run("scan", tmp_path / "t", "--all").stderr
    assert len(rows("scan", tmp_path / "t")) == 50


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    mw.create_table(str(tmp_path / "t"), pa.table({"x": range(20_000)}))
    scanning = subprocess.Popen(
        [*COMMAND, "scan", str(tmp_path / "t"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert scanning.stdout is not None
    assert scanning.stderr is not None
    scanning.stdout.readline()
    scanning.stdout.close()
    with scanning:
        assert scanning.stderr.read() == ""
    assert scanning.returncode == 0


def test_control_characters_and_markup_of_the_data_are_spelled_out(tmp_path: Path) -> None:
    mw.create_table(str(tmp_path / "t"), pa.table({"text": ["[bold]a[/bold] \x1b[31mred\nnext"]}))
    assert "[bold]a[/bold] \\x1b[31mred\\nnext" in run("scan", tmp_path / "t").stdout


def test_tables_fit_a_terminal_of_eighty_columns(table: Path) -> None:
    with mw.open_table(str(table)).writer() as writer:
        writer.put({"id": [77], "name": ["a long name " * 20], "vec": [[0.123456789, 123456.789]]})
    for command in (["scan"], ["shards"], ["stats"], ["manifest"], ["wal", "list"], ["get", 77]):
        seen = (
            on_a_terminal(*command[:2], table, *command[2:])
            if command[0] == "wal"
            else on_a_terminal(command[0], table, *command[1:])
        )
        assert max(map(len, seen.splitlines())) <= 80, seen
    assert mw.open_table(str(table)).shards()[0].shard_id in on_a_terminal("stats", table)
    columns = pa.table({f"column_{i}": [f"value {i}"] for i in range(30)})
    mw.create_table(str(table) + "-wide", columns)
    assert "column_29  value 29" in on_a_terminal("scan", str(table) + "-wide")


def test_long_work_shows_progress_with_a_rate_on_a_terminal_only(table: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n8,x\n")
    assert "rows/s" in on_a_terminal("put", table, tmp_path / "a.csv", "--missing", "null")
    assert "SSTables/s" in on_a_terminal("compact", table)
    assert "shards/s" in on_a_terminal("gc", table)
    assert run("compact", table).stderr == ""


def test_the_shell_completes_commands_and_options() -> None:
    environment = {"_MEMWAL_COMPLETE": "complete_bash", "COMP_WORDS": "memwal s", "COMP_CWORD": "1"}
    assert run(environment=environment).stdout.split() == [
        "scan",
        "search",
        "snapshot",
        "schema",
        "shards",
        "stats",
    ]
    environment |= {"COMP_WORDS": "memwal scan t --expl", "COMP_CWORD": "3"}
    assert run(environment=environment).stdout.split() == ["--explain"]


def test_help_lists_every_command_and_each_has_json() -> None:
    text = run("--help").stdout
    expected = [
        "demo",
        "create",
        "enable",
        "put",
        "update",
        "delete",
        "scan",
        "get",
        "search",
        "shards",
        "manifest",
        "stats",
        "bench",
        "wal",
    ]
    expected += ["diff", "snapshot", "checkpoints"]
    expected += [
        "changes",
        "consumers",
        "exporter",
        "ui",
        "top",
        "head",
        "schema",
        "tables",
        "check-store",
        "maintain",
        "flush",
        "compact",
        "gc",
        "verify",
        "repair",
    ]
    commands = typer.main.get_command(app).commands
    assert set(commands) == set(expected)
    groups = {name: command for name, command in commands.items() if hasattr(command, "commands")}
    assert set(groups) == {"wal", "checkpoints"}
    for name in commands:
        assert f"│ {name} " in text
    single = [command for name, command in commands.items() if name not in groups]
    for command in [*single, *(inner for group in groups.values() for inner in group.commands.values())]:
        assert any("--json" in parameter.opts for parameter in command.params), command.name
    assert run("--version").stdout.startswith("memwal ")


def test_bench_runs_from_anywhere_in_a_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "bench", "--list"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    assert len(done.stdout.splitlines()) > 10
    assert "no case has" in run("bench", "--only", "nothing like this", status=2).stderr


def test_bench_measures_and_tells_programs() -> None:
    done = run("bench", "--quick", "--only", "append", "--json")
    assert json.loads(done.stdout)
    assert "measured" in done.stderr


def test_dates_of_a_json_file_are_texts(tmp_path: Path) -> None:
    """Arrow's reader takes days as numbers for a date."""
    answer("create", tmp_path / "t", "--columns", "day:date,v:int64", "-p", "day")
    (tmp_path / "rows.json").write_text('{"day": "2026-01-31", "v": 1}\n')
    assert answer("put", tmp_path / "t", tmp_path / "rows.json")["rows"] == 1
    assert answer("get", tmp_path / "t", "2026-01-31") == {"day": "2026-01-31", "v": 1}
