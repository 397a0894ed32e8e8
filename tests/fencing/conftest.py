"""Shards for the fencing tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.shard_audit import TableKind
from tests.kit.fenced_writers import Shard


@pytest.fixture
def new_shard(tmp_path: Path) -> Callable[..., Shard]:
    """Makes a shard of a new table of the given kind."""

    def make(kind: str, **settings: Any) -> Shard:
        uri = str(tmp_path / f"table-{kind}")
        TableKind(kind).create(uri)
        return Shard(uri, str(uuid.uuid4()), kind, settings)

    return make
