"""What is missing or damaged of a Lance dataset, seen from the store: asked after Lance refused to read it.

Owns `find_damage` and `version_names`. Lance answers a damaged file and a wrong argument with the same exception, so the
files are looked at themselves. Invariants:

1. It costs a few requests and never reads rows; it runs only after a failure.
2. None says that nothing was seen, not that all is well: data pages carry no checksum.
"""

from __future__ import annotations

from lance_memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, UnsupportedFormatError, is_panic
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.manifest import (
    BITMAP,
    VERSIONS_DIR,
    Fragment,
    data_path,
    deletion_path,
    parse_lance_manifest,
    parse_version_name,
)
from lance_memwal.store.location import Location

_DATA_DIR = "data"
_FILE_MAGIC = b"LANC"
_MAX_OPENED = 256
_FIRST_WITH_READER = (0, 3)  # what a manifest calls file version 2.0


def version_names(location: Location, directory: str = "") -> dict[int, str]:
    """The manifests of the dataset in `directory` by version, under either way of naming them."""
    path = _below(directory, VERSIONS_DIR)
    names = ((parse_version_name(name), f"{path}/{name}") for name in location.store.list_names(path))
    return {version: name for version, name in names if version is not None}


def version_times(location: Location) -> dict[int, int]:
    """When the manifest of every version of the base table was written, in milliseconds since 1970."""
    found = ((parse_version_name(i.path.rpartition("/")[2]), i.modified_ms) for i in location.store.list(VERSIONS_DIR))
    return {version: written_ms for version, written_ms in found if version is not None}


def find_damage(location: Location, directory: str = "", *, manifest_path: str | None = None) -> MemWalError | None:
    """The first thing that is missing or damaged of the dataset in `directory`, as of a version (None: the newest)."""
    if manifest_path is None:
        names = version_names(location, directory)
        if not names:
            return None
        manifest_path = names[max(names)]
    try:
        data = location.store.get(manifest_path)
        manifest = parse_lance_manifest(data, path=manifest_path)
        _check_version(manifest_path, manifest.version)
        _check_fragments(location, directory, manifest.fragments())
    except (CorruptDataError, UnsupportedFormatError) as error:
        return error
    except ObjectNotFoundError:  # cleaned up: whoever reads an old version has to start again
        return None
    flags = manifest.unknown_reader_flags
    if not flags or _opens(location, directory):
        return None
    return UnsupportedFormatError(
        f"the dataset has features that are not known here (reader flags {flags}): read it with a newer version",
        path=manifest_path,
    )


def _opens(location: Location, directory: str) -> bool:
    """Whether Lance knows the features of the dataset."""
    try:
        lance_at(location).dataset(directory)
    except (ValueError, OSError, NotImplementedError):
        return False
    return True


def _check_version(manifest_path: str, version: int) -> None:
    """A manifest that lost its message says that it is version 0, and Lance believes it."""
    if parse_version_name(manifest_path.rpartition("/")[2]) not in (None, version):
        raise CorruptDataError(f"a manifest says that it is version {version}", path=manifest_path)


def _check_fragments(location: Location, directory: str, fragments: tuple[Fragment, ...]) -> None:
    sizes = {item.path: item.size_bytes for item in location.store.list(_below(directory, _DATA_DIR))}
    files = [(_below(directory, data_path(file.path)), file) for f in fragments for file in f.files]
    for path, file in files:
        if path not in sizes:
            raise CorruptDataError("a data file is missing", path=path)
        if file.size_bytes and sizes[path] != file.size_bytes:
            location.store.head(path)  # which says so if it is a link
            raise CorruptDataError(f"a data file has {sizes[path]} bytes instead of {file.size_bytes}", path=path)
    for fragment in fragments:
        _check_deletions(location, directory, fragment)
    for path, file in files[:_MAX_OPENED]:
        if location.store.get_tail(path, len(_FILE_MAGIC)) != _FILE_MAGIC:
            raise CorruptDataError("a data file has no footer", path=path)
        if (file.major_version, file.minor_version) >= _FIRST_WITH_READER:
            _check_footer(location, path)


def _check_footer(location: Location, path: str) -> None:
    """Let Lance read what a data file says of itself; a version that it does not know is no damage."""
    try:
        lance_at(location).reader(path).metadata()
    except NotImplementedError:
        return
    except (ValueError, OSError) as error:
        raise CorruptDataError(f"a data file does not say what it holds: {str(error)[:200]}", path=path) from None
    except BaseException as error:
        if not is_panic(error):  # Lance also gives up on how it was called: no proof of damage
            raise


def _check_deletions(location: Location, directory: str, fragment: Fragment) -> None:
    if fragment.deletion is None:
        return
    path = _below(directory, deletion_path(fragment.id, fragment.deletion))
    try:
        data = location.store.get(path)
        if fragment.deletion.file_type == BITMAP:
            decode_deletions(data, physical_rows=fragment.physical_rows)
    except ObjectNotFoundError:
        raise CorruptDataError("a deletion vector is missing", path=path) from None
    except CorruptDataError as error:
        raise CorruptDataError(f"a deletion vector is damaged: {error}", path=path) from None
    if not data:
        raise CorruptDataError("a deletion vector is empty", path=path)


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
