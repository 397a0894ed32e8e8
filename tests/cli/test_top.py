"""`memwal top`: what a person, a pipe and a program see of a table that is written."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from tests.kit.cli_process import COMMAND

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[mw.Table]:
    """A table of many shards with rows in their logs only, and one open writer."""
    made = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 30))
    with made.writer(fsync=False) as writer:
        writer.put([{"id": n, "v": "x"} for n in range(300)])
        yield made


def test_once_is_one_plain_page_with_the_busiest_shards(table: mw.Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", table.uri, "--once", "--every-seconds", "0.1"]) == 0
    page = capsys.readouterr().out
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", page) == []
    assert "30 entries that are in no SSTable yet" in page
    assert "0.0 entries/s" in page
    assert "and 10 more shards, less busy" in page
    assert page.count("0 of 0") == 20
    assert page.count("~0%") == 20, "an estimate of how full the memory is"


def test_program_reads_numbers_of_the_statistics(table: mw.Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", table.uri, "--once", "--every-seconds", "0.1", "--json"]) == 0
    look = json.loads(capsys.readouterr().out)
    stats = table.stats(live_rows=False, collectable=False)
    assert len(look["stats"]["shards"]) == len(stats.shards) == 30
    assert [s["wal_tip"] for s in look["stats"]["shards"]] == [s.wal_tip for s in stats.shards]
    assert look["rates"]["entries"] == 0.0
    assert set(look) == {"time_ms", "stats", "rates"}


def test_memory_is_estimated_from_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = {"fsync": False, "max_unflushed_memtable_bytes": 1000}
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    with table.writer() as writer:
        writer.put([{"id": n, "v": "x" * 10} for n in range(300)])
        assert main(["top", table.uri, "--once", "--every-seconds", "0.1"]) == 0
    page = capsys.readouterr().out
    assert int(re.search(r"~(\d+)%", page).group(1)) > 100  # type: ignore[union-attr]


def test_a_table_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(tmp_path / "none"), "--once"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


class Screen:
    """What a person sees of a command on a terminal of this size."""

    def __init__(self, *arguments: str, lines: int = 20, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
        )
        os.close(theirs)
        self._seen = ""

    def until(self, pattern: str) -> str:
        """What was shown since the last call, up to `pattern`."""
        end = time.monotonic() + 60
        while (found := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < end, self._seen
            if select.select([self._ours], [], [], 1)[0]:
                self._seen += os.read(self._ours, 65_536).decode()
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_a_person_watches_a_table_that_goes_and_comes_back(table: mw.Table, tmp_path: Path) -> None:
    watched = tmp_path / "copy"
    shutil.copytree(table.uri, watched)
    screen = Screen("top", str(watched), "--every-seconds", "0.2")
    try:
        shown = screen.until("and 20 more shards")
        assert "\x1b[?1049h" in shown, "it has a screen of its own"
        assert "rates come with the second look" in shown
        screen.until(r"0\.0 entries/s")
        watched.rename(tmp_path / "away")
        screen.until("trying again every")
        (tmp_path / "away").rename(watched)
        screen.until("more shards")
        screen.press(b"q")
        screen.until(r"\x1b\[\?1049l")
        assert screen.process.wait(30) == 0
    finally:
        screen.close()


def test_ctrl_c_is_a_way_to_end_it_on_a_pipe(table: mw.Table) -> None:
    command = [*COMMAND, "top", table.uri, "--every-seconds", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "entries/s," not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, trouble = process.communicate(timeout=30)
        assert process.returncode == 0
        assert trouble == ""
