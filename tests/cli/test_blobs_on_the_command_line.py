"""Blob columns on the command line: sizes are printed, bytes on request."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

import lance_memwal as mw
from tests.kit.blobs import SCHEMA, blob_rows
from tests.kit.cli_process import COMMAND, answer, rows, run


def test_blobs_are_put_from_files_and_shown_by_their_size(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.parquet"
    mw.create_table(str(uri), SCHEMA, writer_defaults={"fsync": False})
    image = bytes(range(256)) * 5000
    pq.write_table(blob_rows({1: image, 2: None}), data)
    assert answer("put", uri, data)["rows"] == 2
    assert sorted((row["id"], row["image"]) for row in rows("scan", uri)) == [
        (1, {"position": None, "size": len(image)}),
        (2, None),
    ]
    assert answer("get", uri, 1)["image"]["size"] == len(image)
    assert str(len(image)) in run("get", uri, 1).stdout
    assert len(run("wal", "show", uri, 1).stdout) < 4000
    asked = [*COMMAND, "get", str(uri), "1", "--blob", "image"]
    assert subprocess.run(asked, capture_output=True, check=True).stdout == image
    refused = run("get", uri, 2, "--blob", "image", status=1)
    assert "null" in refused.stderr
    assert json.loads(run("scan", uri, "--count", "--json").stdout) == {"rows": 2}
