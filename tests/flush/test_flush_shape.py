"""What a flush refuses, leaves on storage and returns; the base table that it asks about columns answers for one version."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError, UnavailableError
from lance_memwal.lance.base import BaseTable, lance_errors, lance_read
from lance_memwal.log.manifest_codec import decode_manifest
from lance_memwal.rows.schema import FieldId, TableSchema
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.write.once import OnceAppender
from tests.kit.compaction import by_lance_only
from tests.kit.flush_peer import KEY, Tables, key_field

SCHEMA = pa.schema([key_field("id", pa.int64()), pa.field("v", pa.string())])


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path, SCHEMA)


class RecordingStore(WrappedStore):
    """Passes everything on, and remembers the calls in order."""

    def __init__(
        self,
        inner: ObjectStore,
        calls: list[tuple[str, str]],
        fail: str | None = None,
        *,
        only: str = "",
        why: str = "the store is gone",
        failing: Callable[[], object] = bool,
    ) -> None:
        super().__init__(inner)
        self._calls, self._fail = calls, fail
        self._only, self._why, self._failing = only, why, failing

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._calls.append((kind, path))
        if self._fail is not None and self._fail in path and kind.startswith(self._only or "put"):
            self._failing()
            raise UnavailableError(self._why, retryable=False)
        return call(path, *rest, **options)


@pytest.mark.parametrize("nothing", [[], SCHEMA.append(pa.field("_tombstone", pa.bool_())).empty_table()])
def test_a_generation_without_rows_is_refused(tables: Tables, nothing: Any) -> None:
    with pytest.raises(InvalidInputError, match="without rows"):
        tables.write(nothing)


def test_other_columns_are_refused(tables: Tables) -> None:
    rows = tables.rows([{"id": 1, "v": "a"}])
    with pytest.raises(InvalidInputError, match="columns"):
        tables.write(rows.select(["id", "_tombstone", "v"]))
    with pytest.raises(InvalidInputError, match="columns"):
        tables.write(rows.drop_columns(["_tombstone"]))


@pytest.mark.parametrize(
    ("ids", "reason"),
    [(pa.array(["x"]), "does not fit the type int64"), (pa.nulls(1, pa.int64()), "must not hold nulls")],
)
def test_keys_that_do_not_fit_or_are_null_are_refused(tables: Tables, ids: pa.Array, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=f"column 'id' {reason}"):
        tables.write(pa.table({"id": ids, "v": ["a"], "_tombstone": [False]}))


def test_more_dictionary_values_than_the_index_type_has_are_refused(tmp_path: Path) -> None:
    """Lance would write a file that nobody can read."""
    kind = pa.dictionary(pa.int8(), pa.string())
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.int64()), pa.field("d", kind)]))
    batches = [
        batch
        for part in range(3)
        for batch in tables.rows([{"id": i, "d": f"{part}-{i}"} for i in range(100)]).to_batches()
    ]
    assert tables.write(batches[:1]).physical_rows == 100
    with pytest.raises(InvalidInputError, match="column 'd' does not fit"):
        tables.write(batches)


def test_thousands_of_small_batches_become_one_fragment(tables: Tables) -> None:
    whole = tables.rows([{"id": i % 700, "v": str(i)} for i in range(3_000)])
    batches = [batch for start in range(3_000) for batch in whole.slice(start, 1).to_batches()]
    sstable = tables.write(batches)
    dataset = lance.dataset(str(tables.directory(sstable)))
    assert dataset.version == 1
    assert [fragment.physical_rows for fragment in dataset.get_fragments()] == [3_000]
    assert dataset.count_rows() == 700
    dataset.validate()
    as_table = tables.write(pa.Table.from_batches(batches), generation=2)
    assert lance.dataset(str(tables.directory(as_table))).to_table().equals(dataset.to_table())


def test_rows_keep_their_insert_order(tables: Tables) -> None:
    keys = [5, 3, 9, 1]
    sstable = tables.write(tables.rows([{"id": key, "v": str(key)} for key in keys], [{"id": 7}]))
    table = lance.dataset(str(tables.directory(sstable))).to_table()
    assert table["id"].to_pylist() == [5, 3, 9, 1, 7]
    assert table["_tombstone"].to_pylist() == [False, False, False, False, True]
    assert table.schema == tables.schema.memory


def test_the_result_counts_rows_and_bytes_like_the_reference(tables: Tables) -> None:
    rows = [{"id": i % 3, "v": "abc"} for i in range(10)]
    sstable = tables.write(tables.rows(rows))
    assert sstable.physical_rows == 10
    assert sstable.primary_key_bytes == 80
    shard = tables.peer(rows).parent
    newest = max((shard / "manifest").glob("*.binpb"), key=lambda path: int(path.stem[::-1], 2))

    (theirs,) = decode_manifest(newest.read_bytes()).sstables
    assert (sstable.physical_rows, sstable.primary_key_bytes) == (theirs.physical_rows, theirs.primary_key_bytes)
    assert sstable.in_memory_bytes == pytest.approx(theirs.in_memory_bytes, rel=0.1)


def test_every_attempt_writes_a_directory_of_its_own(tables: Tables) -> None:
    rows = tables.rows([{"id": 1, "v": "a"}])
    names = {tables.write(rows, generation=4).path for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"[0-9a-f]{8}_gen_4", name) for name in names)


def test_the_name_comes_from_the_clock(tables: Tables) -> None:
    class FixedClock(SystemClock):
        def token_hex(self, nbytes: int) -> str:  # type: ignore[override]
            return "ab" * nbytes

        def randbits(self, bits: int) -> int:  # type: ignore[override]
            return (1 << bits) - 1

    sstable = tables.write(tables.rows([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}]), clock=FixedClock())
    assert sstable.path == "abababab_gen_1"
    (vector,) = (tables.directory(sstable) / "_deletions").iterdir()
    assert vector.name == f"0-1-{(1 << 64) - 1}.bin"
    assert tables.scan(sstable) == [{"id": 1, "v": "b"}]


def test_with_fsync_the_finished_directory_is_synced_last(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []
    tables = Tables(tmp_path, SCHEMA)
    tables.location = resolve(tables.uri, wrap=lambda inner: RecordingStore(inner, calls))
    rows = tables.rows([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    tables.write(rows)
    assert "sync_tree" not in {name for name, _ in calls}
    sstable = write_sstable(
        tables.location, tables.shard, 2, rows, schema=tables.schema, storage_version="2.1", fsync=True
    )
    assert calls[-1] == ("sync_tree", f"_mem_wal/{tables.shard}/{sstable.path}")


@pytest.mark.parametrize("target", ["data", "_pk_index"])
def test_a_failing_lance_write_fails_the_flush_with_our_error(tmp_path: Path, target: str) -> None:
    tables = Tables(tmp_path, SCHEMA)

    class FixedClock(SystemClock):
        def token_hex(self, nbytes: int) -> str:  # type: ignore[override]
            return "cd" * nbytes

    blocked = Path(tables.uri, "_mem_wal", tables.shard, "cdcdcdcd_gen_1", target)
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where a directory should be")
    with pytest.raises(MemWalError):
        tables.write(tables.rows([{"id": 1, "v": "a"}]), clock=FixedClock())


def test_an_index_after_the_data_sees_base_ids_and_no_replaced_row(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("gone", pa.int32()), key_field("id", pa.int64()), pa.field("v", pa.string())])
    tables = Tables(tmp_path, schema, drop=["gone"], rows=[{"id": 1, "v": "base"}, {"id": 8, "v": "base"}])
    seen: list[int] = []

    def index(dataset: lance.LanceDataset) -> None:
        seen.append(dataset.count_rows())
        dataset.create_scalar_index("v", "BTREE", name="v_idx")

    rows = tables.rows([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}, {"id": 2, "v": "a"}])
    sstable = tables.write(rows, after_data=index)
    assert seen == [2]
    dataset = lance.dataset(str(tables.directory(sstable)))
    assert dataset.max_field_id == 3
    assert dataset.to_table(filter="v = 'a'")["id"].to_pylist() == [2]
    assert [entry.name for entry in dataset.describe_indices()] == ["v_idx"]
    assert tables.scan(sstable) == [{"id": 1, "v": "b"}, {"id": 2, "v": "a"}, {"id": 8, "v": "base"}]


def test_until_its_last_file_is_written_a_generation_is_no_dataset(tmp_path: Path) -> None:
    tables = Tables(tmp_path, SCHEMA)
    calls: list[tuple[str, str]] = []
    kept = tmp_path / "kept"

    def keep(inner: ObjectStore) -> Any:
        return RecordingStore(inner, calls, fail="_versions", failing=lambda: shutil.copytree(shard, kept))

    shard = Path(tables.uri, "_mem_wal", tables.shard)
    tables.location = resolve(tables.uri, wrap=keep)
    with pytest.raises(UnavailableError):
        tables.write(tables.rows([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}]))
    (attempt,) = kept.iterdir()
    assert {path.name for path in attempt.iterdir()} == {"data", "_pk_index", "_deletions", "bloom_filter.bin"}
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(str(attempt))


@pytest.mark.parametrize("failing", ["bloom_filter.bin", "_deletions", "_versions"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_attempt_that_fails_leaves_nothing_behind(tmp_path: Path, failing: str, streamed: bool) -> None:
    tables = Tables(tmp_path, SCHEMA)
    marker = Path(tables.uri, "_mem_wal", tables.shard, "manifest", "1")
    marker.parent.mkdir(parents=True)
    marker.touch()
    rows = tables.rows([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    tables.location = resolve(tables.uri, wrap=lambda inner: RecordingStore(inner, [], fail=failing, only="put"))
    for _ in range(3):
        with pytest.raises(UnavailableError, match="the store is gone"):
            tables.write(iter(rows.to_batches()) if streamed else rows)
    assert [path.name for path in marker.parents[1].iterdir()] == ["manifest"]


def test_a_removal_that_fails_does_not_hide_why_the_attempt_failed(tmp_path: Path) -> None:
    tables = Tables(tmp_path, SCHEMA)

    def wrap(inner: ObjectStore) -> Any:
        gone = RecordingStore(inner, [], fail="_gen_", only="list")
        return RecordingStore(gone, [], fail="bloom", only="put", why="the first failure")

    tables.location = resolve(tables.uri, wrap=wrap)
    with pytest.raises(UnavailableError, match="the first failure"):
        tables.write(tables.rows([{"id": 1, "v": "a"}]))


def test_a_failing_index_fails_the_flush(tables: Tables) -> None:
    def fail(dataset: lance.LanceDataset) -> None:
        raise InvalidInputError("no such index")

    with pytest.raises(InvalidInputError, match="no such index"):
        tables.write(tables.rows([{"id": 1, "v": "a"}]), after_data=fail)


def test_without_a_base_table_fields_are_numbered_from_zero(tmp_path: Path) -> None:
    location = resolve(str(tmp_path / "table"))
    schema = TableSchema(SCHEMA, ("id",))
    rows = pa.table({"id": [1, 1], "v": ["a", "b"], "_tombstone": [False, False]})
    shard = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
    sstable = write_sstable(location, shard, 1, rows, schema=schema, storage_version="2.1", fsync=True)
    dataset = lance.dataset(str(tmp_path / "table" / "_mem_wal" / shard / sstable.path))
    assert [field.id() for field in dataset.lance_schema.fields()] == [0, 1, 2]
    assert dataset.to_table()["v"].to_pylist() == ["b"]


def test_field_ids_that_do_not_match_the_columns_are_refused(tables: Tables) -> None:
    tables.schema = TableSchema(tables.schema.columns, ("id",), (FieldId(0), FieldId(1), FieldId(2)))
    with pytest.raises(InvalidInputError, match="fields"):
        tables.write(tables.rows([{"id": 1, "v": "a"}]))


def test_a_schema_with_a_bad_key_or_the_reserved_column_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="nullable"):
        TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64(), metadata=KEY)]))
    with pytest.raises(InvalidInputError, match="reserved"):
        TableSchema.from_arrow(pa.schema([pa.field("_tombstone", pa.bool_())]))


def test_the_base_table_is_not_touched(tables: Tables) -> None:
    before = tables.base.refresh().version
    tables.write(tables.rows([{"id": 1, "v": "a"}]))
    assert tables.base.refresh().version == before
    shutil.rmtree(Path(tables.uri, "_mem_wal"))
    assert lance.dataset(tables.uri).count_rows() == 0


POINT = pa.struct([("price", pa.decimal128(20, 3))])
DECIMALS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("d", pa.decimal128(20, 3)),
        pa.field("wide", pa.decimal256(50, 5)),
        pa.field("list", pa.list_(pa.decimal128(9, 2))),
        pa.field("p", POINT),
    ]
)
SHARD = mw.shard_id_for(mw.Unsharded())


def shifted(count: int, start: int = 0) -> pa.RecordBatch:
    """`count` rows as they come out of an IPC stream that begins 8 bytes beside an address that suits decimals."""
    numbers = range(start, start + count)
    values = [Decimal(number) / 4 for number in numbers]
    given = pa.record_batch(
        [list(numbers), values, values, [[value] for value in values], [{"price": value} for value in values]],
        schema=DECIMALS,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DECIMALS) as stream:
        stream.write_batch(given)
    data = sink.getvalue()
    room = pa.allocate_buffer(data.size + 8)
    held = memoryview(room)
    held[8:] = memoryview(data)
    moved = pa.ipc.open_stream(pa.BufferReader(room.slice(8))).read_next_batch()
    if any(buffer is not None and buffer.address % 16 for buffer in moved.column(1).buffers()):
        return moved
    return pa.ipc.open_stream(pa.BufferReader(data)).read_next_batch()


def flush_of_a_claim(uri: str, batch: pa.RecordBatch) -> None:
    once = OnceAppender(uri)
    claim = once.claim(SHARD)
    once.append(claim, [batch])
    assert once.flush_tail(claim) == 1


def large_append(uri: str, batch: pa.RecordBatch) -> None:
    once = OnceAppender(uri, max_entry_bytes=1)
    assert once.append(once.claim(SHARD), [batch]).generation == 1


def flush_of_a_tail(uri: str, batch: pa.RecordBatch) -> None:
    with_tail = mw.open_table(uri).shard_writer(fsync=False)
    with_tail.put(batch)
    with_tail.abort()
    assert mw.open_table(uri).flush(idle_seconds=0).generations == 1


def large_put(uri: str, batch: pa.RecordBatch) -> None:
    with mw.open_table(uri).shard_writer(fsync=False, max_entry_bytes=1) as writer:
        writer.put(batch)


def put(uri: str, batch: pa.RecordBatch) -> None:
    with mw.open_table(uri).shard_writer(fsync=False) as writer:
        writer.put(batch)


@pytest.mark.parametrize("count", [1, 2, 3, 4])  # the layout of an entry depends on it
@pytest.mark.parametrize("write", [flush_of_a_claim, flush_of_a_tail, large_append, large_put, put])
def test_decimals_at_any_address_are_flushed(
    write: Callable[[str, pa.RecordBatch], None], count: int, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, DECIMALS, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    batch = shifted(count)
    write(uri, batch)
    assert table.scan(consistency="flushed").to_table().to_pylist() == batch.to_pylist()
    table.compact()
    assert table.scan().to_table().to_pylist() == batch.to_pylist()


def test_a_table_is_made_of_decimals_at_any_address(tmp_path: Path) -> None:
    batch = shifted(3)
    table = mw.create_table(str(tmp_path / "t"), batch, primary_key="id", sharding=mw.Unsharded())
    assert table.scan().to_table().to_pylist() == batch.to_pylist()


GAPPED = pa.schema(
    [
        pa.field("a", pa.int32()),
        key_field("id", pa.int64()),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("l", pa.list_(pa.string()))])),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("z", pa.int32()),
    ]
)


def opened(uri: str) -> BaseTable:
    base = BaseTable.open(resolve(uri))
    assert base is not None
    return base


def test_no_table_is_an_answer(tmp_path: Path) -> None:
    assert BaseTable.open(resolve(str(tmp_path / "nothing"))) is None


def test_a_directory_with_shards_but_no_dataset_is_no_base_table(tmp_path: Path) -> None:
    (tmp_path / "table" / "_mem_wal").mkdir(parents=True)
    assert BaseTable.open(resolve(str(tmp_path / "table"))) is None


def test_a_damaged_manifest_is_an_error_and_not_absence(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(GAPPED.empty_table(), uri)
    (manifest,) = (tmp_path / "table" / "_versions").glob("*.manifest")
    manifest.write_bytes(b"x" * 40)
    with pytest.raises(MemWalError):
        BaseTable.open(resolve(uri))


def test_a_version_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    lance.write_dataset(GAPPED.empty_table(), tmp_path / "table")
    with pytest.raises(MemWalError):
        BaseTable.open(resolve(str(tmp_path / "table")), version=7)


def test_schema_ids_and_key_of_a_table_with_dropped_columns(tmp_path: Path) -> None:
    base = Tables(tmp_path, GAPPED, drop=["a", "z"], storage="2.0").base
    assert base.schema.names == ["id", "s", "v"]
    assert base.field_ids == (1, 2, 3, 4, 5, 6)
    assert base.column_ids == {"id": 1, "s": 2, "v": 6}
    assert base.primary_key == ("id",)
    assert base.data_storage_version == "2.0"
    assert [(f.id, f.name, f.parent_id) for f in base.manifest.fields] == [
        (1, "id", -1),
        (2, "s", -1),
        (3, "x", 2),
        (4, "l", 2),
        (5, "item", 4),
        (6, "v", -1),
    ]
    assert base.details is not None
    assert base.details.maintain_all_indexes is True
    assert [entry.name for entry in base.index_entries] == ["__lance_mem_wal"]


def test_a_table_without_mem_wal_has_no_details(tmp_path: Path) -> None:
    lance.write_dataset(GAPPED.empty_table(), tmp_path / "table")
    base = opened(str(tmp_path / "table"))
    assert base.details is None
    assert base.index_entries == ()


def test_refresh_returns_itself_until_somebody_commits(tmp_path: Path) -> None:
    tables = Tables(tmp_path, GAPPED)
    base = tables.base
    assert base.refresh() is base
    lance.dataset(tables.uri).drop_columns(["z"])
    newer = base.refresh()
    assert newer.version == base.version + 1
    assert newer.schema.names == ["a", "id", "s", "v"]
    assert base.schema.names == ["a", "id", "s", "v", "z"]
    assert newer.refresh() is newer
    assert newer.details == base.details


def test_an_old_version_can_be_opened(tmp_path: Path) -> None:
    tables = Tables(tmp_path, GAPPED)
    lance.dataset(tables.uri).drop_columns(["z"])
    old = BaseTable.open(tables.location, version=1)
    assert old is not None
    assert old.version == 1
    assert old.details is None
    assert old.schema.names[-1] == "z"


def test_datasets_with_old_manifest_names_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(GAPPED.empty_table(), uri, enable_v2_manifest_paths=False).initialize_mem_wal()
    assert (tmp_path / "table" / "_versions" / "2.manifest").exists()
    base = opened(uri)
    assert base.version == 2
    assert base.details is not None
    assert base.takes_hand_commit
    assert base.path_of(3) == "_versions/3.manifest"


def test_a_hand_made_commit_is_taken_where_the_manifest_is_known_to_be_safe(tmp_path: Path) -> None:
    base = Tables(tmp_path, GAPPED).base
    assert base.takes_hand_commit
    assert base.manifest_bytes.endswith(b"LANC")
    uri = str(tmp_path / "stable")
    lance.write_dataset(GAPPED.empty_table(), uri, enable_stable_row_ids=True)
    assert opened(uri).takes_hand_commit
    assert not opened(uri).takes_staged_commit
    uri = str(tmp_path / "other bases")
    lance.write_dataset(GAPPED.empty_table(), uri, **by_lance_only(uri))
    assert not opened(uri).takes_hand_commit


def test_a_key_of_a_forbidden_type_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    schema = pa.schema([key_field("size", pa.float64())])
    lance.write_dataset(pa.table({"size": [0.5]}, schema=schema), tmp_path / "table")
    with pytest.raises(InvalidInputError, match="double"):
        _ = opened(str(tmp_path / "table")).primary_key


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("x"), InvalidInputError),
        (TypeError("x"), InvalidInputError),
        (pa.ArrowInvalid("x"), InvalidInputError),
        (OSError("x"), UnavailableError),
        (RuntimeError("x"), UnavailableError),
        (ObjectNotFoundError("p"), ObjectNotFoundError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_errors_of_lance_become_ours(raised: BaseException, expected: type[BaseException]) -> None:
    with pytest.raises(expected), lance_errors("reading"):
        raise raised


def test_the_text_of_a_foreign_error_shows_no_query_and_no_source_place() -> None:
    text = "Generic error: https://host/container/blob?sv=2020&sig=secret%3D failed, /home/x/rust/lance/src/io.rs:17:3"
    with pytest.raises(UnavailableError) as caught, lance_errors("reading"):
        raise OSError(text)
    assert str(caught.value) == "reading: Generic error: https://host/container/blob?... failed"
    assert caught.value.__suppress_context__


def test_a_panic_inside_lance_is_an_error_like_any_other(tmp_path: Path) -> None:
    from lance.file import LanceFileReader

    (tmp_path / "empty.lance").write_bytes(b"")
    with pytest.raises(UnavailableError) as caught, lance_errors("reading"):
        LanceFileReader(str(tmp_path / "empty.lance"))
    assert not caught.value.retryable
    location = resolve(str(tmp_path))
    with pytest.raises(CorruptDataError):
        lance_read(location, "empty.lance", lambda: LanceFileReader(str(tmp_path / "empty.lance")))


def test_a_read_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    answers = iter([OSError("a moment of weakness"), 42])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert lance_read(resolve(str(tmp_path)), "file", read) == 42


def test_a_file_that_is_gone_is_reported_as_gone(tmp_path: Path) -> None:
    def read() -> int:
        raise OSError("cannot open")

    with pytest.raises(ObjectNotFoundError):
        lance_read(resolve(str(tmp_path)), "file", read)
