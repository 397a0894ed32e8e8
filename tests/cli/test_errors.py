"""Bad input and bad days through a real process: one clear line, the right exit status, and nothing lost."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_memwal as mw
from lance_memwal.store.paths import wal_entry_path
from tests.harness.profile import scaled
from tests.kit.cli_process import COMMAND, answer, one_line, rows, run


def shard_of(uri: Path) -> str:
    return mw.open_table(str(uri)).shards()[0].shard_id


def append_rows(uri: Path, count: int) -> list[int]:
    """Entries that only the log holds; returns their positions."""
    appender = mw.WalAppender.open(str(uri), shard_of(uri), fsync=False)
    vectors = pa.array([[1, 1]], pa.list_(pa.float32(), 2))
    return [appender.append(pa.record_batch({"id": [100 + i], "name": ["tail"], "vec": vectors})) for i in range(count)]


def tear(uri: Path, position: int) -> bytes:
    path = uri / wal_entry_path(shard_of(uri), position)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    return whole


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["scan", "nowhere"], 1, "there is no table"),
        (["put", "nowhere", "x.csv"], 1, "there is no table"),
        (["wal", "list", "nowhere"], 1, "there is no table"),
        (["manifest", "nowhere"], 1, "there is no table"),
        (["enable", "nowhere"], 1, "there is no table"),
        (["scan"], 2, "--help"),
        (["wal", "show", "x"], 2, "memwal wal show --help"),
        (["nonsense"], 2, "--help"),
        (["create", "x", "--columns", "id:strange"], 2, "id:strange"),
        (["create", "x"], 2, "--like"),
        (["create", "x", "--columns", "id:int64", "--sharding", "round-robin"], 2, "round-robin"),
        (["create", "x", "--columns", "id:int64", "--merge", "newest"], 2, "newest"),
        (["create", "x", "--columns", "id:int64", "--merge", "last-write"], 2, "last-write"),
        (["create", "x", "--columns", "id:int64", "-p", "id", "--merge", "last-write:ts"], 1, "sequence column 'ts'"),
        (["create", "x", "--columns", "id:int64", "-p", "nope"], 1, "nope"),
        (["search", "x"], 2, "--text"),
        (["search", "x", "--vector", "1 2"], 2, "JSON array"),
        (["search", "x", "--vector", "[1]", "--distance-range", "3"], 2, "two numbers"),
        (["delete", "x"], 2, "--file"),
        (["scan", "s3://bucket/x", "-o", "broken"], 2, "KEY=VALUE"),
        (["scan", "ftp://host/x"], 1, "s3://"),
    ],
)
def test_bad_input_is_one_line_and_the_right_status(arguments: list[str], status: int, says: str) -> None:
    assert says in one_line(run(*arguments, status=status))


def test_a_missing_key_a_wrong_key_type_and_a_bad_filter_are_told_apart(table: Path) -> None:
    assert "no row with key 99" in one_line(run("get", table, 99, status=1))
    assert "key column 'id' is int64" in one_line(run("get", table, "abc", status=1))
    assert "key column 'id' is int64" in one_line(run("delete", table, "1.5", status=1))
    assert "bogus" in one_line(run("scan", table, "--filter", "bogus = 1", status=1))
    assert "nope" in one_line(run("scan", table, "--columns", "nope", status=1))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", None, "there is no file"),
        ("a.csv", b"", "Empty CSV"),
        ("a.csv", b"id,name\nabc,x\n", "cannot be read"),
        ("a.csv", b"id,nope\n1,x\n", "nope"),
        ("a.json", b'{"id": 1', "cannot be read"),
        ("a.parquet", b"not parquet", "cannot be read"),
        ("a.arrow", b"not arrow", "cannot be read"),
        ("a.arrows", b"not arrow", "cannot be read"),
        ("a.txt", b"x", ".parquet"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_nothing_is_written(
    table: Path, tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert says in one_line(run("put", table, tmp_path / name, status=1))
    assert answer("scan", table, "--count") == {"rows": 5}


def test_a_lance_table_without_a_write_path_is_not_taken_for_one(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "plain")
    assert "no MemWAL index" in one_line(run("scan", tmp_path / "plain", status=1))


def test_debug_shows_where_an_error_came_from() -> None:
    assert "Traceback" in run("scan", "nowhere", "--debug", status=1).stderr


# ------------------------------------------------------------------------------------------------------------ storage


@pytest.mark.parametrize("command", [["scan"], ["wal", "list"]])
def test_an_unreachable_bucket_ends_with_one_line_that_keeps_secrets(command: list[str]) -> None:
    options = ["-o", "aws_endpoint=http://127.0.0.1:9", "-o", "allow_http=true", "-o", "aws_region=us-east-1"]
    options += ["-o", "aws_access_key_id=AKIAVISIBLE", "-o", "aws_secret_access_key=topsecret"]
    line = one_line(run(*command, "s3://bucket/table", *options, status=1))
    assert "check the network and the endpoint" in line
    assert "topsecret" not in line
    assert "AKIAVISIBLE" not in line


def test_a_table_that_may_not_be_written_is_read_and_refuses_writes_with_one_line(table: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n8,x\n")
    folders = [table, *(path for path in table.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        for command in (["put", table, tmp_path / "a.csv", "--missing", "null"], ["delete", table, 1]):
            assert "permission denied" in one_line(run(*command, status=1, may_ignore_permissions=False))
        assert "Permission denied" in one_line(run("compact", table, status=1, may_ignore_permissions=False))
        assert json.loads(run("scan", table, "--count", "--json", may_ignore_permissions=False).stdout) == {"rows": 5}
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert answer("put", table, tmp_path / "a.csv", "--missing", "null")["rows"] == 1
    assert answer("scan", table, "--count") == {"rows": 6}


def test_a_directory_that_became_a_file_ends_with_one_line(table: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n8,x\n")
    shard = table / "_mem_wal" / shard_of(table)
    (shard / "manifest").rename(shard / "kept")
    (shard / "manifest").write_text("a file where a directory should be")
    one_line(run("put", table, tmp_path / "a.csv", status=1))
    (shard / "manifest").unlink()
    (shard / "kept").rename(shard / "manifest")
    assert answer("scan", table, "--count") == {"rows": 5}


# ------------------------------------------------------------------------------------------------------------- damage


def test_a_torn_last_entry_is_named_and_repaired_on_demand(table: Path) -> None:
    (position,) = append_rows(table, 1)
    tear(table, position)
    assert answer("verify", table, status=1)["ok"] is False
    line = one_line(run("scan", table, status=1))
    assert f"position={position}" in line
    assert "memwal verify" in line
    assert answer("repair", table, status=1)["actions"]
    assert answer("verify", table, status=1)["ok"] is False
    assert answer("repair", table, "--apply")["problems"] == []
    assert answer("verify", table)["ok"] is True
    assert answer("scan", table, "--count") == {"rows": 5}


def test_damage_in_the_middle_of_a_log_is_shown_in_full_and_left_to_people(table: Path) -> None:
    positions = append_rows(table, 3)
    whole = tear(table, positions[1])
    assert "restore the object from a backup" in " ".join(run("verify", table, status=1).stdout.split())
    assert "restore the object from a backup" in " ".join(run("repair", table, "--apply", status=1).stdout.split())
    kinds = {entry["position"]: entry["kind"] for entry in rows("wal", "list", table, status=1)}
    assert [kinds[position] for position in positions] == ["rows", "damaged", "rows"]
    assert answer("gc", table, "--delete", status=1)["refused_shards"] == 1
    (table / wal_entry_path(shard_of(table), positions[1])).write_bytes(whole)
    assert answer("verify", table)["ok"] is True
    assert answer("scan", table, "--count") == {"rows": 8}


def test_a_lost_memwal_index_is_found_and_brought_back(table: Path) -> None:
    lance.write_dataset(lance.dataset(str(table)).to_table(), str(table), mode="overwrite")
    assert "no MemWAL index" in one_line(run("scan", table, status=1))
    assert answer("verify", table, status=1)["ok"] is False
    assert answer("repair", table, "--apply")["problems"] == []
    assert answer("scan", table, "--count") == {"rows": 5}


# ------------------------------------------------------------------------------------------------------------ writers


def test_a_put_that_is_fenced_says_so_and_how_far_it_came(tmp_path: Path) -> None:
    uri, path = tmp_path / "t", tmp_path / "big.parquet"
    data = pa.table({"id": pa.array(range(1_000_000), pa.int64())})
    pq.write_table(data, path)
    made = mw.create_table(
        str(uri), data.schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    putting = subprocess.Popen(
        [*COMMAND, "put", str(uri), str(path), "--batch-rows", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for entry in mw.WalTailer(str(uri), mw.shard_id_for(mw.Unsharded())).follow(1):
        if entry.position >= 3:
            break
    with made.shard_writer() as owner:  # takes the shard over, long before a million puts are done
        out, err = putting.communicate(timeout=60)
        assert (putting.returncode, out, err.count("\n")) == (1, "", 1)
        assert "Writer fenced" in err
        acknowledged = int(err.split("; ")[-1].split(" ")[0].replace(",", ""))
        assert owner.scan().count_rows() >= acknowledged > 0


def test_a_killed_put_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    uri, path = tmp_path / "t", tmp_path / "big.parquet"
    data = pa.table({"id": pa.array(range(200_000), pa.int64())})
    pq.write_table(data, path)
    mw.create_table(str(uri), data.schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    putting = subprocess.Popen(
        [*COMMAND, "put", str(uri), str(path), "--batch-rows", "500"],
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


def test_following_stops_on_an_interrupt_without_a_word(table: Path) -> None:
    following = subprocess.Popen(
        [*COMMAND, "wal", "follow", str(table)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stderr is not None
    assert "following shard" in following.stderr.readline()
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=60) == ("", "")
    assert following.returncode == 130


def test_no_lines_of_json_end_the_process(tmp_path: Path) -> None:
    asked = [
        sys.executable,
        "-m",
        "tests.cli.json_child",
        str(tmp_path / "rows.jsonl"),
        str(scaled(ci=1_500, prove=50_000)),
    ]
    child = subprocess.run(asked, capture_output=True, text=True)
    assert child.returncode == 0, (child.stderr[-2_000:], (tmp_path / "rows.jsonl").read_bytes()[:500])
