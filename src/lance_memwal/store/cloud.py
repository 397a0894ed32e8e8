"""The store on S3, Google Cloud Storage and Azure Blob Storage, through obstore.

Owns every call to obstore, what its failures mean, and `CloudTarget`: what a URI and storage options say about a bucket.
Invariants, besides S1 to S6 of the port:

1. One call is one attempt: obstore's own retries are off, and conditional puts are on, whatever the options say. The retry
   layer sees each failure, and no hidden retry makes a lost acknowledgement look like another process's object.
2. No text of obstore or of the service goes into an error: it may hold signatures and tokens. Only the status, the
   service's error code and our own words do.
3. A missing bucket or container is trouble, never the absence of an object.
4. A process that was forked from one that used a cloud store gets an error at once; the client's threads stayed with
   the parent, and the call would hang forever.
5. Options go to obstore under the names that they have: it knows every spelling of a name, it takes what the options do not
   say from the environment, and it refuses what it does not know. Only what Lance alone knows (its own retries and pace,
   its formats) is left out. The same option under two names must have one value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from lance_memwal.errors import InvalidInputError, MemWalError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.port import ObjectMeta, PutResult

_DEFAULTS = {"connect_timeout": "10s", "timeout": "60s"}
_ONLY_LANCE = re.compile(
    r"(client_(max_retries|retry_timeout)|download_retry_count|expires_at_millis|refresh_offset_millis|use_opendal"
    r"|(lance|new_table)_\w+)$"
)


@dataclass(frozen=True, slots=True)
class _Service:
    """The prefixes that names may have, what Lance calls otherwise than obstore, and what stands whatever is asked for."""

    scheme: str
    prefixes: tuple[str, ...]
    forced: Mapping[str, str]
    renamed: Mapping[str, str]

    def short(self, option: str) -> str:
        """The name of an option without case and prefix."""
        name = option.lower()
        found = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        return name.removeprefix(found)


_NONE: Mapping[str, str] = MappingProxyType({})
# One path is one DELETE: not every service that speaks S3 has the bulk request.
_S3 = _Service("s3", ("aws_",), MappingProxyType({"conditional_put": "etag", "disable_bulk_delete": "true"}), _NONE)
_AZURE = _Service("az", ("azure_storage_", "azure_"), _NONE, _NONE)
_GCS = _Service("gs", ("google_",), _NONE, MappingProxyType({"storage_token": "bearer_token"}))
_SERVICES = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfss": _AZURE}


@dataclass(frozen=True, slots=True, repr=False)
class CloudTarget:
    """One bucket (or container), the path below it, what tells it from every other, and all that a client must be told.

    `key` has no secret in it.
    """

    scheme: str
    bucket: str
    prefix: str
    key: str
    config: tuple[tuple[str, str], ...]


def parse_target(uri: str, options: Mapping[str, str]) -> CloudTarget:
    """What `uri` and Lance's `options` say about where to go and how."""
    parts = urlsplit(uri)
    service = _SERVICES[parts.scheme]
    config = _unique(service, options)
    bucket = parts.netloc
    given = {service.short(name): value for name, value in config.items()}
    if parts.scheme == "abfss":
        bucket, _, host = parts.netloc.rpartition("@")
        if "account_name" not in given:
            config["account_name"] = given["account_name"] = host.partition(".")[0]
    if not bucket or "@" in bucket or ":" in bucket:
        raise InvalidInputError(f"a {parts.scheme}:// URI must begin with the name of a bucket or container")
    if service is _S3 and bucket.endswith("--x-s3") and "s3_express" not in given:
        config["s3_express"] = "true"
    path = unquote(parts.path).strip("/")
    if path and any(name in ("", ".", "..") for name in path.split("/")):
        raise InvalidInputError(f"the path of a {parts.scheme}:// URI must be made of names, not {path!r}")
    if "#" in uri:
        raise InvalidInputError(f"a {parts.scheme}:// URI has no fragment: write %23 for a # in a name")
    return CloudTarget(
        scheme=service.scheme,
        bucket=bucket,
        prefix=path,
        key=_key(f"{service.scheme}://{bucket}/{path}".rstrip("/"), given),
        config=tuple(sorted(config.items())),
    )


def _unique(service: _Service, options: Mapping[str, str]) -> dict[str, str]:
    """The options for obstore, each under one name, with ours."""
    config: dict[str, str] = {}
    names: dict[str, str] = {}
    for option, value in options.items():
        short = service.short(option)
        if short in service.forced or _ONLY_LANCE.match(short):
            continue
        name = names.setdefault(short, service.renamed.get(short, option))
        if config.setdefault(name, value) != value:
            raise InvalidInputError(f"storage option {option!r} is given twice, with different values")
    for name, value in _DEFAULTS.items():
        if name not in names and not any(f"{prefix}{name}".upper() in os.environ for prefix in service.prefixes):
            config[name] = value
    return {**config, **service.forced}


def _key(place: str, given: Mapping[str, str]) -> str:
    """`place`, and whose it is."""
    endpoint = given.get("endpoint") or given.get("endpoint_url") or given.get("base_url")
    host = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint else ""
    where = "/".join(part for part in (host, given.get("account_name", "")) if part)
    return f"{place} ({where})" if where else place


# -------------------------------------------------------------------------------------------------------------- cloud


_T = TypeVar("_T")
_CLIENTS = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_STATUS = re.compile(r"(?:status code|\(code): (\d{3})\b")
_CODE = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>")
_NOT_SENT = re.compile(r"kind: Connect\b")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_CONFLICT_IN_FLIGHT = frozenset({"ConditionalRequestConflict", "OperationAborted", "ContainerBeingDeleted"})
_PASSING_STATUS = frozenset({408, 409, 425, 429})
_ADVICE = {
    301: "the bucket is in another region: set the region in the storage options",
    307: "the bucket is in another region: set the region in the storage options",
    401: "not authenticated: check the credentials in the storage options or the environment",
    403: "permission denied: check the credentials and their rights on the bucket",
    404: "the bucket or container does not exist: create it or correct the URI",
    429: "the service throttles: try again later",
    501: "the service has no conditional puts: choose one that has",
    503: "the service throttles or is unavailable: try again later",
}
_used_by: int | None = None


def open_cloud(uri: str, options: Mapping[str, str]) -> tuple[ObstoreStore, str]:
    """The store at `uri`, and the key that tells its place from every other."""
    target = parse_target(uri, options)
    return ObstoreStore(_client(target.scheme, target.bucket, target.config), target), target.key


@lru_cache(maxsize=64)
def _client(scheme: str, bucket: str, config: tuple[tuple[str, str], ...]) -> Any:
    """A client of one bucket, shared by all tables in it, so that they share connections and credentials."""
    try:
        return _CLIENTS[scheme](bucket, config=dict(config), retry_config={"max_retries": 0})
    except (exceptions.BaseError, ValueError, TypeError, OSError) as error:
        text = str(error).partition("\n")[0]
    for _, value in config:
        text = text.replace(value, "***") if len(value) > 3 else text
    raise InvalidInputError(f"the storage options do not fit {scheme}://: {text}")


class ObstoreStore:
    """Objects below one path of a bucket or container."""

    def __init__(self, client: Any, target: CloudTarget) -> None:
        self._client = client
        self._prefix = f"{target.prefix}/" if target.prefix else ""
        self._place = target.key
        self._has_suffix_ranges = target.scheme != "az"

    def __repr__(self) -> str:
        return f"ObstoreStore({self._place!r})"

    def put_new(
        self,
        path: str,
        data: bytes,
        *,
        sync: bool = False,  # noqa: ARG002 - durable by itself
        make_directory: bool = True,  # noqa: ARG002 - there are none
    ) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError`."""
        key = self._key(path)
        self._call("create", path, lambda: obstore.put(self._client, key, data, mode="create", use_multipart=False))
        return PutResult.CREATED

    def make_directory(self, path: str) -> None:
        """Nothing to do: an object store has no directories."""

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:  # noqa: ARG002 - durable by itself
        """Replace `path` atomically."""
        key = self._key(path)
        self._call("replace", path, lambda: obstore.put(self._client, key, data, use_multipart=False))

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        key = self._key(path)
        return self._call("read", path, lambda: _whole(obstore.get(self._client, key)))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        if start < 0 or length < 0:
            raise InvalidInputError(f"a range cannot be negative: start {start}, length {length}")
        key = self._key(path)
        if length == 0:
            self.head(path)
            return b""
        return self._call("read", path, lambda: _range(self._client, key, start, length))

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        if length < 0:
            raise InvalidInputError(f"a length cannot be negative: {length}")
        key = self._key(path)
        if length and self._has_suffix_ranges:
            tail = self._call("read", path, lambda: _suffix(self._client, key, length))
            if tail is not None:
                return tail
        size = self.head(path).size_bytes
        return self.get_range(path, max(0, size - length), min(length, size))

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        key = self._key(path)
        try:
            found = self._call("look at", path, lambda: obstore.head(self._client, key))
        except ObjectNotFoundError:
            # The answer to HEAD has no body: only a GET tells a missing object from a missing bucket.
            self._call("look at", path, lambda: _range(self._client, key, 0, 1))
            found = self._call("look at", path, lambda: obstore.head(self._client, key))
        return self._meta(found)

    def list_names(self, prefix: str) -> list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        below = self._key(prefix.rstrip("/")) if prefix else self._prefix.rstrip("/")
        found = self._call("list", prefix, lambda: obstore.list_with_delimiter(self._client, below))
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return [path.rpartition("/")[2] for path in paths]

    def list(self, prefix: str) -> list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        below = self._key(prefix.rstrip("/")) if prefix else self._prefix.rstrip("/")
        found = self._call("list", prefix, lambda: obstore.list(self._client, below).collect())
        return [self._meta(item) for item in found]

    def delete(self, path: str) -> None:
        """Remove `path`; absent is fine. There are no directories, and no root to remove."""
        if not path:
            return
        key = self._key(path)
        try:
            self._call("delete", path, lambda: obstore.delete(self._client, key))
        except ObjectNotFoundError:
            return

    def sync_tree(self, prefix: str) -> None:
        """Nothing to do: what the service acknowledged is durable."""

    def _key(self, path: str) -> str:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidInputError(f"not a path of an object: {path!r}")
        return self._prefix + path

    def _meta(self, item: Mapping[str, Any]) -> ObjectMeta:
        path: str = item["path"]
        modified_ms = int(item["last_modified"].timestamp() * 1000)
        return ObjectMeta(path.removeprefix(self._prefix), item["size"], modified_ms, item.get("e_tag") or "")

    def _call(self, verb: str, path: str, call: Callable[[], _T]) -> _T:
        global _used_by
        if _used_by is None:
            _used_by = os.getpid()
        elif _used_by != os.getpid():
            text = f"cannot {verb} {path}: this process was forked from one that uses object storage: use spawn instead"
            raise UnavailableError(text, ambiguous=False, retryable=False)
        try:
            return call()
        except (exceptions.BaseError, OSError) as error:
            failure = _translate(verb, path, error)
        raise failure  # out here, so that no traceback shows the original and its text


def _whole(result: Any) -> bytes:
    """The body of `result`, proved complete."""
    data = bytes(result.bytes())
    start, end = result.range
    if len(data) != end - start:
        raise OSError(f"{len(data)} of {end - start} bytes")
    return data


def _range(client: Any, key: str, start: int, length: int) -> bytes:
    try:
        return bytes(obstore.get_range(client, key, start=start, length=length))
    except exceptions.BaseError as error:
        if _status(str(error)) != 416 and "StartTooLarge" not in str(error):
            raise
    return b""  # the object ends before `start`


def _suffix(client: Any, key: str, length: int) -> bytes | None:
    """The last `length` bytes, or None where the service has none to give: they disagree about empty objects."""
    options: Any = {"range": {"suffix": length}}
    try:
        return _whole(obstore.get(client, key, options=options))
    except exceptions.BaseError as error:
        if _status(str(error)) != 416 and "non-partial" not in str(error):
            raise
    return None


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def _translate(verb: str, path: str, error: Exception) -> MemWalError:
    """What `error` means for the caller; its text is read for the status and the code, and goes no further."""
    text = str(error)
    status = _status(text)
    found = _CODE.search(text)
    code = found.group(1) if found else ""
    if isinstance(error, exceptions.InvalidPathError):
        return InvalidInputError(f"not a path of an object: {path!r}")
    if isinstance(error, exceptions.AlreadyExistsError) and code not in _CONFLICT_IN_FLIGHT:
        return ObjectExistsError(path)
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        if code not in _NO_BUCKET and verb not in ("create", "replace", "list"):
            return ObjectNotFoundError(path)
        status = 404
    elif isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        status = status or 403
    elif "incorrectly configured region" in text:
        status = 301
    return _unavailable(verb, path, status, code, sent=not _NOT_SENT.search(text))


def _unavailable(verb: str, path: str, status: int | None, code: str, *, sent: bool) -> UnavailableError:
    refused = status is not None and 300 <= status < 500
    passing = status is None or (status >= 500 and status != 501) or status in _PASSING_STATUS
    passing = passing or code in _CONFLICT_IN_FLIGHT or code == "RequestTimeout"
    if status is None:
        advice = "the service did not answer: check the network and the endpoint" if not sent else "the answer was lost"
    else:
        advice = _ADVICE.get(status, "the service failed: try again later" if passing else "the request was refused")
    details = ", ".join(part for part in (f"status={status}" if status else "", f"code={code}" if code else "") if part)
    return UnavailableError(
        f"cannot {verb} {path or 'the root'}: {advice}" + (f" [{details}]" if details else ""),
        ambiguous=sent and not refused,
        retryable=passing,
    )
