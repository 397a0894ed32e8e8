"""Every command through a real process: what it prints, where, and its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import memwal as mw
from memwal.store.paths import wal_entry_path


def run(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "memwal", *map(str, arguments)],
        capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


def answer(*arguments: object, status: int = 0) -> dict:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def rows(*arguments: object) -> list[dict]:
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("memwal: ")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    uri = tmp_path / "t"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("vec", pa.list_(pa.float32(), 2))])
    made = mw.create_table(
        str(uri), schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with made.writer() as writer:
        writer.put([{"id": i, "name": f"name{i} common", "vec": [i, 0]} for i in range(5)])
    return uri


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


def test_delete_takes_keys_and_files(table: Path, tmp_path: Path) -> None:
    (tmp_path / "gone.csv").write_text("id\n3\n4\n")
    assert answer("delete", table, 0, "--file", tmp_path / "gone.csv") == {"deleted_keys": 3}
    assert sorted(row["id"] for row in rows("scan", table)) == [1, 2]


def test_scan_projects_filters_limits_and_explains(table: Path) -> None:
    assert rows("scan", table, "--columns", "id", "--filter", "id > 2", "--limit", 1)[0].keys() == {"id"}
    assert "base table version" in run("scan", table, "--explain").stdout


def test_search_by_text_and_by_vector(table: Path) -> None:
    assert rows("search", table, "--text", "name3")[0]["id"] == 3
    assert rows("search", table, "--vector", "[4.2, 0]", "-k", 1)[0]["id"] == 4


def test_shards_stats_and_manifest_say_what_is_there(table: Path) -> None:
    (shard,) = rows("shards", table)
    assert shard["generations"] == [1]
    assert shard["shard_id"] in run("shards", table).stdout
    assert answer("stats", table)["shards"][0]["uncompacted_rows"] == 5
    assert answer("manifest", table)["current_generation"] == 2
    assert "uncompacted" in run("stats", table).stdout


def test_the_log_can_be_listed_shown_and_followed(table: Path) -> None:
    assert rows("wal", "list", table)[0]["rows"] == 5
    assert len(rows("wal", "show", table, 1)) == 5
    follower = subprocess.Popen(
        [sys.executable, "-m", "memwal", "wal", "follow", str(table), "--count", "2", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stderr is not None
    assert "following shard" in follower.stderr.readline()
    with mw.open_table(str(table)).writer() as writer:
        writer.put({"id": [9], "name": ["new"], "vec": [[0, 0]]})
        out, _ = follower.communicate(timeout=60)
    followed = [json.loads(line) for line in out.splitlines()]
    assert [entry["sentinel"] for entry in followed] == [True, False]


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
    assert rows("repair", table) == []
    assert answer("scan", table, "--count") == {"rows": 6}


def test_a_corrupt_entry_is_named_by_verify_and_repaired_on_demand(table: Path) -> None:
    appender = mw.WalAppender.open(str(table), shard_of(table), fsync=False)
    batch = pa.record_batch({"id": [7], "name": ["tail"], "vec": pa.array([[1, 1]], pa.list_(pa.float32(), 2))})
    position = appender.append(batch)
    path = table / wal_entry_path(shard_of(table), position)
    path.write_bytes(path.read_bytes()[:-40])
    assert answer("verify", table, status=1)["ok"] is False
    assert f"position={position}" in one_line(run("scan", table, status=1))
    assert rows("repair", table)
    assert answer("verify", table, status=1)["ok"] is False
    rows("repair", table, "--apply")
    assert answer("verify", table)["ok"] is True
    assert answer("scan", table, "--count") == {"rows": 5}


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["scan", "nowhere"], 1, "there is no table"),
        (["scan"], 2, "--help"),
        (["nonsense"], 2, "--help"),
        (["create", "x", "--columns", "id:strange"], 2, "id:strange"),
        (["create", "x", "--columns", "id:int64", "--sharding", "round-robin"], 2, "round-robin"),
        (["scan", "s3://bucket/x", "-o", "broken"], 2, "KEY=VALUE"),
        (["scan", "ftp://host/x"], 1, "s3://"),
    ],
)
def test_bad_input_is_one_line_and_the_right_status(
    tmp_path: Path, arguments: list[str], status: int, says: str
) -> None:
    assert says in one_line(run(*arguments, status=status))


def test_a_missing_key_a_wrong_key_type_and_a_bad_filter_are_told_apart(table: Path) -> None:
    assert "no row with key 99" in one_line(run("get", table, 99, status=1))
    assert "no integer" in one_line(run("get", table, "abc", status=1))
    assert "bogus" in one_line(run("scan", table, "--filter", "bogus = 1", status=1))


def test_an_unreachable_bucket_ends_with_one_line(tmp_path: Path) -> None:
    options = ["-o", "aws_endpoint=http://127.0.0.1:9", "-o", "allow_http=true", "-o", "aws_region=us-east-1"]
    options += ["-o", "aws_access_key_id=AKIAVISIBLE", "-o", "aws_secret_access_key=topsecret"]
    line = one_line(run("scan", "s3://bucket/table", *options, status=1))
    assert "topsecret" not in line
    assert "AKIAVISIBLE" not in line


def test_a_table_that_cannot_be_written_ends_with_one_line(table: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n8,x\n")
    shard = table / "_mem_wal" / shard_of(table)
    (shard / "manifest").rename(shard / "kept")
    (shard / "manifest").write_text("a file where a directory should be")
    one_line(run("put", table, tmp_path / "a.csv", status=1))
    (shard / "manifest").unlink()
    (shard / "kept").rename(shard / "manifest")
    assert answer("scan", table, "--count") == {"rows": 5}


def test_a_killed_put_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    uri, path = tmp_path / "t", tmp_path / "big.parquet"
    data = pa.table({"id": pa.array(range(200_000), pa.int64())})
    pq.write_table(data, path)
    mw.create_table(str(uri), data.schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    putting = subprocess.Popen(
        [sys.executable, "-m", "memwal", "put", str(uri), str(path), "--batch-rows", "500"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    tailer = mw.WalTailer(str(uri), mw.shard_id_for(mw.Unsharded()))
    for entry in tailer.follow(1):
        if entry.position >= 20:
            break
    putting.send_signal(signal.SIGKILL)
    putting.wait()
    assert answer("scan", uri, "--count")["rows"] >= 20 * 500
    assert answer("put", uri, path)["rows"] == 200_000
    assert answer("scan", uri, "--count") == {"rows": 200_000}


def test_version_of_help_lists_every_command() -> None:
    text = run("--help").stdout
    for command in (
        "create",
        "put",
        "scan",
        "get",
        "search",
        "wal",
        "compact",
        "gc",
        "verify",
        "repair",
        "stats",
        "bench",
    ):
        assert command in text
