"""`memwal exporter`: what Prometheus reads of a table."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from lance_memwal.cli.exporting import exposition, samples
from tests.kit.engine_tables import table_in_all_tiers

LINE = re.compile(r'^[a-z_]+\{([a-z_]+="([^"\\\n]|\\.)*",?)+\} [0-9.e+-]+$')


def test_a_table_is_told_in_the_language_of_prometheus(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        stats = table.stats()
        lines = exposition(list(samples(table.uri, stats))).splitlines()
    told = [line for line in lines if not line.startswith("#")]
    assert all(LINE.match(line) for line in told)
    for name in ("base_rows", "uncompacted_generations", "wal_lag_entries", "collectable_bytes"):
        assert f'lance_mem_wal_table_{name}{{table="{table.uri}"}} {getattr(stats, name)}' in told
    assert lines.count("# TYPE lance_mem_wal_table_base_rows gauge") == 1


def test_a_table_that_cannot_be_read_is_down() -> None:
    assert exposition(list(samples('a"b\\c\nd', None))).splitlines()[-1] == (
        'lance_mem_wal_table_up{table="a\\"b\\\\c\\nd"} 0'
    )


@pytest.mark.timeout(60)
def test_the_exporter_answers_until_it_is_stopped(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    command = [sys.executable, "-m", "lance_memwal", "exporter", uri, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://[0-9.:]+/metrics", process.stderr.readline())
            assert found is not None
            with urllib.request.urlopen(found.group(), timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert f'lance_mem_wal_table_up{{table="{uri}"}} 1' in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(found.group() + "/other", timeout=30)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
