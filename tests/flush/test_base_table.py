"""The base table answers about one version, tells absence from failure, and translates Lance's errors."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError, UnavailableError
from lance_memwal.lance.base import BaseTable, lance_errors, lance_read
from lance_memwal.store.location import resolve
from tests.kit.compaction import by_lance_only
from tests.kit.flush_peer import Tables, key_field

SCHEMA = pa.schema(
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
    lance.write_dataset(SCHEMA.empty_table(), uri)
    (manifest,) = (tmp_path / "table" / "_versions").glob("*.manifest")
    manifest.write_bytes(b"x" * 40)
    with pytest.raises(MemWalError):
        BaseTable.open(resolve(uri))


def test_a_version_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    lance.write_dataset(SCHEMA.empty_table(), tmp_path / "table")
    with pytest.raises(MemWalError):
        BaseTable.open(resolve(str(tmp_path / "table")), version=7)


def test_schema_ids_and_key_of_a_table_with_dropped_columns(tmp_path: Path) -> None:
    base = Tables(tmp_path, SCHEMA, drop=["a", "z"], storage="2.0").base
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
    lance.write_dataset(SCHEMA.empty_table(), tmp_path / "table")
    base = opened(str(tmp_path / "table"))
    assert base.details is None
    assert base.index_entries == ()


def test_refresh_returns_itself_until_somebody_commits(tmp_path: Path) -> None:
    tables = Tables(tmp_path, SCHEMA)
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
    tables = Tables(tmp_path, SCHEMA)
    lance.dataset(tables.uri).drop_columns(["z"])
    old = BaseTable.open(tables.location, version=1)
    assert old is not None
    assert old.version == 1
    assert old.details is None
    assert old.schema.names[-1] == "z"


def test_datasets_with_old_manifest_names_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(SCHEMA.empty_table(), uri, enable_v2_manifest_paths=False).initialize_mem_wal()
    assert (tmp_path / "table" / "_versions" / "2.manifest").exists()
    base = opened(uri)
    assert base.version == 2
    assert base.details is not None
    assert base.takes_hand_commit
    assert base.path_of(3) == "_versions/3.manifest"


def test_a_hand_made_commit_is_taken_where_the_manifest_is_known_to_be_safe(tmp_path: Path) -> None:
    base = Tables(tmp_path, SCHEMA).base
    assert base.takes_hand_commit
    assert base.manifest_bytes.endswith(b"LANC")
    uri = str(tmp_path / "stable")
    lance.write_dataset(SCHEMA.empty_table(), uri, enable_stable_row_ids=True)
    assert opened(uri).takes_hand_commit
    assert not opened(uri).takes_staged_commit
    uri = str(tmp_path / "other bases")
    lance.write_dataset(SCHEMA.empty_table(), uri, **by_lance_only(uri))
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
