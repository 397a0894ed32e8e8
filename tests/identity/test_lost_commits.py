"""A commit of Lance that landed although its answer was lost counts once: by real S3 requests through a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.primary_key import mark, unmark
from lance_memwal.log.shards import for_writing
from lance_memwal.store.location import resolve
from services.proxy import proxy
from tests.kit.lost_answers import ANSWERS, Answer, losing

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
Place = tuple[str, dict[str, str]]
pytestmark = pytest.mark.xdist_group("s3")


class Lossy:
    """Storage options through a proxy that loses the answer to one of the next commits to the base table."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.commits_until_lost = 0
        self.lost = 0

    def loses(self, method: str, path: str) -> bool:
        if "/_versions/" not in path or not path.endswith(".manifest"):
            return False
        if 1 <= self.lost <= 2 and method != "PUT":  # Lance looks whether its commit landed: that answer is lost, too
            self.lost += 1
            return True
        self.commits_until_lost -= method == "PUT"
        is_lost = method == "PUT" and self.commits_until_lost == 0
        self.lost += is_lost
        return is_lost


@pytest.fixture
def lossy(s3_table: Place, s3_endpoint: str) -> Iterator[Lossy]:
    found = Lossy()
    with proxy(s3_endpoint, loses=found.loses) as endpoint:
        found.options = {**s3_table[1], "aws_endpoint": endpoint, "client_max_retries": "0"}
        yield found


def write(place: Place) -> None:
    rows = pa.table({"id": [1, 2], "v": [1, 2]}, schema=SCHEMA)
    lance.write_dataset(rows, place[0], storage_options=place[1], enable_v2_manifest_paths=True)


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_enable_with_lost_answer_enables_the_table(s3_table: Place, lossy: Lossy, commit: int) -> None:
    """The commits make the key columns NOT NULL, mark the key, and add the MemWAL index."""
    write(s3_table)
    lossy.commits_until_lost = commit
    table = mw.enable(s3_table[0], primary_key="id", storage_options=lossy.options)
    assert lossy.lost >= 2
    assert (table.primary_key, table.dataset.version) == (["id"], 4)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [2], "v": [3]})
    assert table.get(2) == {"id": 2, "v": 3}


def test_key_with_lost_answer_is_taken_back_once(s3_table: Place, lossy: Lossy) -> None:
    write(s3_table)
    before = BaseTable.need(resolve(s3_table[0], lossy.options))
    marked = mark(before, ("id",))
    lossy.commits_until_lost = 1
    unmark(marked, before)
    assert lossy.lost >= 2
    after = marked.refresh()
    assert after.version == marked.version + 1
    assert after.schema.equals(before.schema, check_metadata=True)


def test_table_id_with_lost_answer_is_given_once(s3_table: Place, lossy: Lossy) -> None:
    write(s3_table)
    lance.dataset(s3_table[0], storage_options=s3_table[1]).initialize_mem_wal()
    base = BaseTable.need(resolve(s3_table[0], lossy.options))
    assert base.table_id is None
    lossy.commits_until_lost = 1
    given = for_writing(base)
    assert lossy.lost >= 2
    assert given.table_id is not None
    assert (given.version, given.refresh().table_id) == (base.version + 1, given.table_id)


@pytest.mark.parametrize("answer", ANSWERS)
def test_details_with_lost_answer_change_once(tmp_path: Path, answer: Answer) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", maintained_indexes="all")
    version = table.dataset.version
    store, location = losing(table.uri, answer)
    store.prefix = "_versions/"
    mw.open_table(location).indexes.maintain(None)
    assert store.prefix is None
    assert table.dataset.version == version + 1
    assert table.details().maintain_all_indexes is False


def test_commit_that_failed_after_it_landed_is_not_repeated(tmp_path: Path) -> None:
    lance.write_dataset(SCHEMA.empty_table(), str(tmp_path))
    base = BaseTable.need(resolve(str(tmp_path)))

    def commit(newest: BaseTable) -> None:
        newest.handle().update_config({"key": "value"})
        raise OSError("the answer was lost")

    landed = base.commit_until("setting a key", commit, lambda newest: newest.manifest.config("key") == "value")
    assert landed.version == base.version + 1


def test_commit_that_did_not_land_raises_its_error(tmp_path: Path) -> None:
    lance.write_dataset(SCHEMA.empty_table(), str(tmp_path))

    def commit(_: BaseTable) -> None:
        raise OSError("no connection")

    with pytest.raises(mw.UnavailableError, match="no connection"):
        BaseTable.need(resolve(str(tmp_path))).commit_until("setting a key", commit, lambda _: False)
