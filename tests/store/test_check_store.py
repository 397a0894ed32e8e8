"""`check_store` on real and wrong stores; a store that ignores conditional creates is refused before rows can be lost."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from lance_memwal.errors import InvalidInputError, ObjectNotFoundError, UnavailableError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectMeta, ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.write.once import OnceAppender

Place = tuple[str, dict[str, str]]
PROPERTIES = ["overwrite protection", "read after write", "delete visibility", "racing creates", "listing after create"]


@pytest.mark.parametrize("kind", ["local", "memory", "s3", "azure"])
def test_every_kind_of_store_is_safe_and_left_empty(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    places: dict[str, Any] = {
        "local": (str(tmp_path / "new" / "er"), None),
        "memory": ("memory://check-store/new", None),
    }
    uri, options = places.get(kind) or request.getfixturevalue(f"{kind}_table")
    report = mw.check_store(uri, storage_options=options)
    assert report.ok, report
    assert list(report.verdicts) == PROPERTIES
    assert all(seconds > 0 for seconds in report.timings.values())
    assert resolve(uri, options).store.list("") == []
    assert list(tmp_path.iterdir()) == []


def test_proxy_that_drops_conditions_is_not_safe(s3_table: Place, unconditional: dict[str, str]) -> None:
    report = mw.check_store(s3_table[0], storage_options=unconditional)
    assert not report.ok
    assert [name for name, verdict in report.verdicts.items() if verdict != "ok"] == [
        "overwrite protection",
        "racing creates",
    ]
    assert len(report.problems) == 2
    assert resolve(*s3_table).store.list("") == []


class CreatesRaceWithoutLoser(WrappedStore):
    """The second of the concurrent creates of a path succeeds: the store checks, then writes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._creates: Counter[str] = Counter()

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        self._creates[path] += "races" in path
        if self._creates[path] == 2:
            self.inner.put(path, data)
            return PutResult.CREATED
        return super().put_new(path, data, sync=sync, make_directory=make_directory)


class CachesAbsence(WrappedStore):
    """A read of an absent object is remembered for one more read."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._absent: set[str] = set()

    def get(self, path: str) -> bytes:
        if path in self._absent:
            self._absent.remove(path)
            raise ObjectNotFoundError(path)
        try:
            return super().get(path)
        except ObjectNotFoundError:
            self._absent.add(path)
            raise


class IgnoresRanges(WrappedStore):
    """A read of a range returns the whole object."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        del start, length
        return super().get(path)


class KeepsDeleted(WrappedStore):
    """Reads and creates still see an object after its delete."""

    def delete(self, path: str) -> None:
        if "deletes" not in path:
            super().delete(path)


class ListsDeleted(WrappedStore):
    """Listings show an object after its delete."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._deleted: list[ObjectMeta] = []

    def delete(self, path: str) -> None:
        self._deleted.append(ObjectMeta(path, 0, 0))
        super().delete(path)

    def list(self, prefix: str) -> list[ObjectMeta]:
        return super().list(prefix) + self._deleted


class ListsOnePage(WrappedStore):
    """A listing ends after 1,000 objects."""

    def list(self, prefix: str) -> list[ObjectMeta]:
        return super().list(prefix)[:1000]


class ListsNamesLate(WrappedStore):
    """A listing of names lacks the object that was created last."""

    last = ""

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        self.last = path.rpartition("/")[2]
        return super().put_new(path, data, sync=sync, make_directory=make_directory)

    def list_names(self, prefix: str) -> list[str]:
        return [name for name in super().list_names(prefix) if name != self.last]


@pytest.mark.parametrize(
    ("store", "problems"),
    [
        (CreatesRaceWithoutLoser, "racing creates"),
        (CachesAbsence, "read after write, delete visibility"),
        (IgnoresRanges, "read after write"),
        (KeepsDeleted, "delete visibility"),
        (ListsDeleted, "delete visibility"),
        (ListsOnePage, "listing after create"),
        (ListsNamesLate, "listing after create"),
    ],
)
def test_each_wrong_behaviour_has_its_verdict(tmp_path: Path, store: type[Any], problems: str) -> None:
    report = mw.check_store(resolve(str(tmp_path), wrap=store))
    assert [name for name, verdict in report.verdicts.items() if verdict != "ok"] == problems.split(", ")


def test_failed_check_leaves_nothing_behind(tmp_path: Path) -> None:
    class Full(WrappedStore):
        def around(self, kind: str, call: Any, path: str, *rest: Any, **options: Any) -> Any:
            if kind == "put_new" and path.endswith("/many/900"):
                raise UnavailableError("no space left", ambiguous=False, retryable=False)
            return call(path, *rest, **options)

    with pytest.raises(UnavailableError, match="no space left"):
        mw.check_store(resolve(str(tmp_path), wrap=Full))
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_table_keeps_the_table(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path), [{"id": 1}], primary_key="id")
    before = sorted(tmp_path.rglob("*"))
    assert mw.check_store(str(tmp_path)).ok
    assert sorted(tmp_path.rglob("*")) == before
    assert table.count_rows() == 1


def test_report_is_short_as_text_and_whole_as_dict(tmp_path: Path) -> None:
    report = mw.check_store(tmp_path / ("long" * 30))
    assert len(repr(report)) <= 100
    assert len(str(report).splitlines()) <= 15
    found = json.loads(json.dumps(report.to_dict()))
    assert found["ok"] is True
    assert found["verdicts"] == dict.fromkeys(PROPERTIES, "ok")


def test_command_prints_a_verdict_per_property(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-store", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in PROPERTIES)


def test_command_exits_with_one_behind_the_proxy(
    s3_table: Place, unconditional: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part for name, text in unconditional.items() for part in ("-o", f"{name}={text}")]
    assert main(["check-store", s3_table[0], "--json", *options]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["verdicts"]["overwrite protection"] != "ok"


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
pytestmark = pytest.mark.xdist_group("s3")


def objects(place: Place) -> list[str]:
    """Every object of the table, by a connection that honours conditions."""
    return sorted(item.path for item in resolve(*place).store.list(""))


def create(place: Place) -> mw.Table:
    return mw.create_table(place[0], SCHEMA, primary_key="id", storage_options=place[1])


def ids(place: Place) -> list[int]:
    found = mw.open_table(place[0], storage_options=place[1]).scan().to_table()
    return sorted(found["id"].to_pylist())


def test_fenced_writer_behind_proxy_loses_no_rows(s3_table: Place, unconditional: dict[str, str]) -> None:
    """A writer that had been fenced was acknowledged three puts, and its entries were overwritten."""
    create(s3_table)
    behind = mw.open_table(s3_table[0], storage_options=unconditional)
    with pytest.raises(InvalidInputError, match="check-store"), behind.writer(compaction=None) as fenced:
        fenced.put({"id": [1]})
    with mw.open_table(s3_table[0], storage_options=s3_table[1]).writer(compaction=None) as writer:
        writer.put({"id": [2]})
    assert ids(s3_table) == [2]


def test_create_table_behind_proxy_creates_nothing(s3_table: Place, unconditional: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="If-None-Match"):
        create((s3_table[0], unconditional))
    assert objects(s3_table) == []


def test_enable_behind_proxy_changes_nothing(s3_table: Place, unconditional: dict[str, str]) -> None:
    lance.write_dataset(pa.table({"id": [1]}, schema=SCHEMA), s3_table[0], storage_options=s3_table[1])
    before = objects(s3_table)
    with pytest.raises(InvalidInputError, match="If-None-Match"):
        mw.enable(s3_table[0], primary_key="id", storage_options=unconditional)
    assert objects(s3_table) == before
    mw.enable(s3_table[0], primary_key="id", storage_options=s3_table[1])


def test_append_to_shared_epoch_behind_proxy_is_refused(s3_table: Place, unconditional: dict[str, str]) -> None:
    """Such an append claims nothing: it joins an epoch that another process claimed."""
    shard_id = str(uuid.uuid4())
    mw.create_table(
        s3_table[0],
        SCHEMA,
        primary_key="id",
        sharding=mw.Manual(),
        allow_keys_across_shards=True,
        storage_options=s3_table[1],
    )
    appender = OnceAppender(s3_table[0], storage_options=s3_table[1])
    claim = appender.claim(shard_id)
    appender.append(claim, [pa.record_batch({"id": [1]}, SCHEMA)])
    behind = OnceAppender(s3_table[0], storage_options=unconditional)
    with pytest.raises(InvalidInputError, match="If-None-Match"):
        behind.append(claim, [pa.record_batch({"id": [2]}, SCHEMA)])
    assert ids(s3_table) == [1]


def test_commit_of_manifest_behind_proxy_is_refused(s3_table: Place, unconditional: dict[str, str]) -> None:
    """Compaction commits manifests without a claim."""
    with create(s3_table).writer(compaction=None) as writer:
        writer.put({"id": [1]})
        writer.flush()
    behind = mw.open_table(s3_table[0], storage_options=unconditional)
    [manifest] = (ShardManifestStore(behind.location, shard.shard_id) for shard in behind.shards())
    before = manifest.list_versions()
    with pytest.raises(InvalidInputError, match="If-None-Match"):
        manifest.commit_maintenance(lambda latest: replace(latest, version=latest.version + 1, sstables=()))
    assert manifest.list_versions() == before


def test_table_without_check_object_gets_it_at_first_claim(s3_table: Place, unconditional: dict[str, str]) -> None:
    """Tables of pylance, LanceDB and earlier versions have no check object."""
    create(s3_table)
    store = resolve(*s3_table).store
    store.delete(paths.STORE_CHECK)
    behind = mw.open_table(s3_table[0], storage_options=unconditional)
    with pytest.raises(InvalidInputError, match="If-None-Match"), behind.writer(compaction=None) as writer:
        writer.put({"id": [1]})
    elsewhere = {**s3_table[1], "aws_session_token": "of another location"}
    with mw.open_table(s3_table[0], storage_options=elsewhere).writer(compaction=None) as writer:
        writer.put({"id": [2]})
    assert paths.STORE_CHECK in objects(s3_table)
    assert ids(s3_table) == [2]


class Calls(WrappedStore):
    """A store that records calls, and lets the check wait for the second listing of manifests."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.made: list[tuple[str, str]] = []
        self.both: threading.Barrier | None = None

    def around(self, kind: str, call: Any, path: str, *rest: Any, **options: Any) -> Any:
        self.made.append((kind, path))
        listings = sum(kind == "list_names" and path.endswith("/manifest") for kind, path in self.made)
        is_listing = kind == "list_names" and path.endswith("/manifest") and listings == 2
        if self.both is not None and (is_listing or path == paths.STORE_CHECK):
            self.both.wait(10)
        return call(path, *rest, **options)


@pytest.fixture
def calls(tmp_path: Path) -> tuple[Calls, Location]:
    """A table on a store whose calls are recorded, and that counts as remote."""
    mw.create_table(str(tmp_path), SCHEMA, primary_key="id", sharding=mw.Manual(), allow_keys_across_shards=True)
    stores: list[Calls] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(Calls(inner))
        return stores[0]  # type: ignore[return-value]

    location = replace(resolve(str(tmp_path), wrap=wrap), is_local=False)
    return stores[0], location


def test_first_claim_costs_one_request_and_the_next_none(calls: tuple[Calls, Location]) -> None:
    store, location = calls
    for _ in range(2):
        mw.WalAppender.open(location, str(uuid.uuid4()))
    assert [kind for kind, path in store.made if path == paths.STORE_CHECK] == ["put_new"]


def test_check_overlaps_the_read_of_the_claim(calls: tuple[Calls, Location]) -> None:
    store, location = calls
    store.both = threading.Barrier(2)
    mw.WalAppender.open(location, str(uuid.uuid4()))
    assert not store.both.broken


def test_check_object_belongs_to_the_table(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    table.put({"id": [1]})
    assert (tmp_path / "t" / paths.STORE_CHECK).is_file()
    assert table.verify().ok
    assert all(paths.STORE_CHECK not in item.path for item in table.gc(dry_run=True, grace_seconds=0).objects)
    table.drop(force=True)
    assert not (tmp_path / "t").exists()
