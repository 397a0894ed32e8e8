"""What people expect of a command line: pipes, formats, one header, words of its own, and a word about what was done."""

import io
import json
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import typer

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.cli import app, main
from tests.kit.cli_process import COMMAND, run

ROWS = pa.table({"id": pa.array([1, 2, 3]), "name": ["a", None, "c"]})


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(
        str(tmp_path / "people"), ROWS.schema, primary_key="id", writer_defaults={"fsync": False, "durable_write": True}
    )


def piped(kind: str) -> bytes:
    sink = io.BytesIO()
    if kind == "csv":
        pyarrow.csv.write_csv(ROWS, sink)
    elif kind == "parquet":
        pq.write_table(ROWS, sink)
    elif kind == "arrow":
        with ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(ROWS)
    else:
        sink.write("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()).encode())
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
def test_rows_come_through_a_pipe_and_leave_through_one(
    table: mw.Table, kind: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped(kind))))
    assert main(["put", table.uri, "-", "--format", kind, "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["rows"] == 3
    assert main(["scan", table.uri, "--format", kind, "--order-by", "id"]) == 0
    out = capfdbinary.readouterr().out
    readers = {
        "csv": pyarrow.csv.read_csv,
        "parquet": pq.read_table,
        "arrow": lambda source: ipc.open_stream(source).read_all(),
        "jsonl": lambda source: pa.Table.from_pylist([json.loads(line) for line in source.read().splitlines()]),
    }
    found = readers[kind](io.BytesIO(out))
    assert found.column("id").to_pylist() == [1, 2, 3]
    assert found.column("name").to_pylist()[2] == "c"


def test_a_pipe_must_say_what_it_holds(table: mw.Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["put", table.uri, "-"]) == 1
    assert "--format" in capsys.readouterr().err


def test_columns_that_a_format_cannot_hold_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.table({"s": [{"a": 1}]}))
    assert main(["scan", table.uri, "--format", "csv"]) == 1
    assert "cannot be written as csv" in capfd.readouterr().err
    assert main(["scan", table.uri, "--format", "csv", "--json"]) == 2


def test_a_scan_has_one_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = pa.table({"number": range(2500), "word": [f"w{n % 7}" for n in range(2500)]})
    table = mw.create_table(str(tmp_path / "t"), many)
    assert main(["scan", table.uri, "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "number" in line] == lines[:1]
    assert len(lines) == 2502
    at = {re.search("w[0-9]", line).start() for line in lines[2:]}  # type: ignore[union-attr]
    assert len(at) == 1, "the columns stand below their names"


def test_head_schema_and_tables_show_all(table: mw.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with table.writer() as writer:
        writer.put(ROWS)
    mw.create_table(str(tmp_path / "other"), pa.table({"x": [1.5]}))
    (tmp_path / "note.txt").write_text("no table")
    (tmp_path / "empty").mkdir()

    def said(*arguments: str) -> list[dict[str, object]]:
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert len(said("head", table.uri, "-n", "2")) == 2
    assert said("schema", table.uri) == [
        {"column": "id", "type": "int64", "nullable": False, "key": 1},
        {"column": "name", "type": "string", "nullable": True, "key": None},
    ]
    assert said("tables", str(tmp_path)) == [
        {"table": "other", "version": 2, "rows": 1, "primary_key": [], "write_path": True},
        {"table": "people", "version": 2, "rows": 0, "primary_key": ["id"], "write_path": True},
    ]
    assert main(["tables", str(tmp_path)]) == 0
    assert "people" in capsys.readouterr().out


def test_a_hint_names_a_command_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for given, hint in (
        (["nonsense"], "memwal --help"),
        (["wal", "list"], "memwal wal list --help"),
        (["get"], "memwal get --help"),
    ):
        assert main(given) == 2
        assert f"(see: {hint})" in capsys.readouterr().err


def test_rows_of_small_batches_stand_below_their_names(table: mw.Table, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(["a", "a longer one", "b"]):
        with table.writer() as writer:
            writer.put([{"id": number, "name": name}])
    assert main(["scan", table.uri]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({re.search("[a-z]", line).start() for line in lines[2:]}) == 1  # type: ignore[union-attr]
    assert len({len(line.rstrip()) for line in lines[2:]}) == 2
    assert len(lines[1]) >= len("id  a longer one")


def test_a_directory_that_is_not_there_has_no_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(tmp_path / "none")]) == 1
    assert "there is no directory" in capsys.readouterr().err


def test_a_short_flag_means_one_thing() -> None:
    meanings = defaultdict(set)
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        for option in [p for c in getattr(command, "commands", {"": command}).values() for p in c.params]:
            names = [name for name in option.opts if name.startswith("-")]
            for short in (name for name in names if len(name) == 2):
                meanings[short].add(next((name for name in names if len(name) > 2), short))
    assert {short: longs for short, longs in meanings.items() if len(longs) > 1} == {}
    assert {"-o", "-n", "-c", "-p"} <= set(meanings)


def test_a_put_says_that_it_takes_a_living_writer_over(table: mw.Table, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    assert "taken over" not in run("put", table.uri, tmp_path / "a.csv").stderr
    writer = table.writer()
    writer.put(ROWS)
    assert "it is taken over, and that writer stops" in run("put", table.uri, tmp_path / "a.csv").stderr
    with pytest.raises(mw.FencedError):
        writer.put(ROWS)
    writer.abort()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.csv"
    path.write_text("id,name\n" + "".join(f"{n},x\n" for n in range(60)))
    return path


def interrupt_at(point: str, times: int) -> None:
    """Press Ctrl-C when the engine is at this point for the third time."""
    reached: list[str] = []

    def handler(name: str) -> None:
        reached.extend([name] if name == point else [])
        if name == point and len(reached) == 3:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    crash_points.install(handler)


@pytest.mark.parametrize("point", ["wal.before_put", "wal.after_put", "put.before_ack"])
def test_interrupted_put_reports_rows(
    table: mw.Table, many: Path, point: str, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupt_at(point, times=1)
    status = main(["put", table.uri, str(many), "--batch-rows", "7"])
    crash_points.install(None)
    assert status == 130
    assert "stopped: 21 rows are in, and durable; put" in capfd.readouterr().err
    assert table.count_rows() == 21
    assert main(["put", table.uri, str(many), "--batch-rows", "7"]) == 0
    assert table.count_rows() == 60


def test_put_interrupted_twice_stops_at_once(table: mw.Table, many: Path, capfd: pytest.CaptureFixture[str]) -> None:
    interrupt_at("wal.after_put", times=2)
    status = main(["put", table.uri, str(many), "--batch-rows", "7"])
    crash_points.install(None)
    assert status == 130
    assert "stopped: 14 rows are in, and durable, and up to 7 more may be; put" in capfd.readouterr().err
    assert 14 <= table.count_rows() <= 21


@pytest.mark.timeout(90)
def test_interrupted_process_reports_the_rows_it_wrote(table: mw.Table, tmp_path: Path) -> None:
    (tmp_path / "many.csv").write_text("id,name\n" + "".join(f"{n},x\n" for n in range(200_000)))
    command = [*COMMAND, "put", table.uri, str(tmp_path / "many.csv"), "--batch-rows", "1", "--no-fsync"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not table.count_rows():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        printed = process.stderr.read()
        assert process.wait(60) == 130
    assert f"stopped: {table.count_rows():,} rows are in, and durable" in printed
