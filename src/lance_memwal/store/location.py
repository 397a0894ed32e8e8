"""Where a table lives: its URI, its options, its store, and the URIs of Lance datasets below it.

Owns `Location`, the value that every part of the engine is handed. Invariants:

1. Child URIs are built structurally (a query part of the root stays after the path), never by joining strings
   elsewhere, and every child open gets the same storage options.
2. Storage options never appear in `repr` or in an error; neither does the query part of a URI.
3. `store_once` is the same store as `store` without retries, for callers that have a retry protocol of their own
   (the WAL).
4. The same URI and options give the same store in a process, so that nobody pays for a cold connection twice; a
   forked child starts with none.

To add a store: an adapter of `store.port` and its scheme here. One that obstore knows needs no adapter, only its scheme and
its names in `store.cloud_options`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from lance_memwal.arguments import check_instance, check_text
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.store.files import flush_to_disk, odd_names
from lance_memwal.store.local import LocalStore
from lance_memwal.store.memory import memory_root
from lance_memwal.store.metering import MeteredStore, Recorder
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.retry import RetryingStore, RetryPolicy

_LOG = logging.getLogger("lance_memwal")
_CLOUD_SCHEMES = ("s3", "gs", "az", "abfss")
_KNOWN = "a local path, file://, memory://name, s3://, gs://, az:// or abfss://"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Location:
    """One table's place. Two locations of the same table are equal in `key`, however they were spelled.

    `lance` stands in for Lance itself in tests (`lance_memwal.lance.door`). `is_checked` is set once this process has checked
    that the store honours the condition of a create (`lance_memwal.store.check`).
    """

    uri: str
    store: ObjectStore
    store_once: ObjectStore
    storage_options: dict[str, str] | None = field(repr=False)
    metrics: Recorder
    is_local: bool
    root_path: str | None
    key: str
    lance: Any = None
    is_checked: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def __repr__(self) -> str:
        return f"Location({self.describe()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled location is its address and its options, credentials included."""
        return resolve, (self.uri, self.storage_options)

    @property
    def dataset_uri(self) -> str:
        """What to hand to Lance for the table itself, together with `storage_options`."""
        return self.uri if self.root_path is None else self.root_path

    @property
    def object_uri(self) -> str:
        """The URI of the table that makes Lance treat a local directory as an object store; else `dataset_uri`.

        Use it to write tags. For a local path Lance first creates the directory of the tags, under the percent-encoded
        name: for `a#b` that is a directory `a%23b` next to the table. With this URI it does not.
        """
        return self.uri if self.root_path is None else f"file-object-store://{quote(self.root_path)}"

    def at_once(self, most: int) -> int:
        """How many requests are worth making at the same time: up to `most`, but one where none waits for a network."""
        return 1 if self.is_local else most

    def child_uri(self, path: str) -> str:
        """What to hand to Lance for the dataset at `path` below the table, together with `storage_options`."""
        if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidInputError(f"not a path below a table: {path!r}")
        if self.root_path is not None:
            return f"{self.root_path.rstrip('/')}/{path}"
        before, mark, query = self.uri.partition("?")
        return f"{before.rstrip('/')}/{quote(path)}{mark}{query}"

    def odd_names(self, prefix: str) -> frozenset[str]:
        """The names directly below the directory `prefix` that are no regular files: links, pipes, directories. None where
        the store has objects only."""
        return frozenset() if self.root_path is None else odd_names(f"{self.root_path.rstrip('/')}/{prefix}")

    def describe(self) -> str:
        """The place in words fit for a log: no options, no query part, no credentials."""
        return self.key


def resolve(
    uri: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, str] | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    metrics: Recorder | None = None,
    policy: RetryPolicy | None = None,
    wrap: Callable[[ObjectStore], ObjectStore] | None = None,
) -> Location:
    """The location of the table at `uri`, with its store ready; nothing is read or created yet. A location is itself.

    The location is shared with earlier calls for the same `uri` and options, unless a keyword asks for its own.
    `wrap` is put around the adapter, below metering and retries.
    """
    if isinstance(uri, Location):
        return uri
    text = _canonical(uri)
    if storage_options is not None:
        check_instance("storage_options", storage_options, Mapping, "a dict of texts")
    options = {str(key): str(value) for key, value in storage_options.items()} if storage_options else None
    if clock is not SYSTEM_CLOCK or not (metrics is None and policy is None and wrap is None):
        return _build(text, options, clock=clock, metrics=metrics, policy=policy, wrap=wrap)
    return _shared(os.getpid(), text, tuple(sorted((options or {}).items())))


@lru_cache(maxsize=512)
def _shared(_process: int, uri: str, options: tuple[tuple[str, str], ...]) -> Location:
    """One location for all callers of this process; connections and their threads stay with it when it forks."""
    return _build(uri, dict(options) or None)


def _build(
    uri: str,
    options: dict[str, str] | None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    metrics: Recorder | None = None,
    policy: RetryPolicy | None = None,
    wrap: Callable[[ObjectStore], ObjectStore] | None = None,
) -> Location:
    if not _LOG.handlers:  # a library is silent until the application says where its log lines go
        _LOG.addHandler(logging.NullHandler())
    adapter: ObjectStore
    root, key = _local_root(uri)
    if root is not None:
        adapter = LocalStore(root, flush=None if uri.startswith("memory:") else flush_to_disk, clock=clock)
    else:
        from lance_memwal.store.cloud import open_cloud  # only who uses a cloud pays for its client

        adapter, key = open_cloud(uri, options or {})
    if wrap is not None:
        adapter = wrap(adapter)
    recorder = metrics or Recorder("" if root is not None else uri.partition(":")[0])
    once = MeteredStore(adapter, recorder, clock)
    store = RetryingStore(once, policy, clock)
    return Location(
        uri=uri,
        store=store,
        store_once=once,
        storage_options=options,
        metrics=recorder,
        is_local=root is not None,
        root_path=root,
        key=key,
    )


def _canonical(uri: str | os.PathLike[str]) -> str:
    """`uri` with its scheme checked and in lower case, or the real path behind it: the same from everywhere."""
    text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(f"a table needs a URI or a path, not {type(uri).__name__}")
    check_text("the URI or path of a table", text)
    scheme, mark, rest = text.partition(":")
    if not mark or not scheme.isascii() or not scheme.replace("+", "").replace("-", "").isalnum():
        return os.path.realpath(text)
    scheme = scheme.lower()
    if scheme == "file":
        return os.path.realpath(_file_path(text))
    if not rest.startswith("//"):
        return os.path.realpath(text)
    if scheme != "memory" and scheme not in _CLOUD_SCHEMES:
        raise InvalidInputError(f"unknown scheme {scheme!r}: a table lives at {_KNOWN}")
    return f"{scheme}:{rest}"


def _file_path(uri: str) -> str:
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise InvalidInputError("a file URI names an absolute path of this machine, as in file:///data/table")
    return path


def _local_root(uri: str) -> tuple[str | None, str]:
    """The real directory behind a local or memory URI and its key, or None and nothing for any other."""
    if uri.startswith("/"):
        return uri, uri
    if not uri.startswith("memory:"):
        return None, ""
    parts = urlsplit(uri)
    below = [part for part in unquote(parts.path).split("/") if part]
    if parts.query or parts.fragment or any("\0" in part or part in (".", "..") for part in below):
        raise InvalidInputError("a memory URI is a name and a path, as in memory://demo/table")
    return "/".join([memory_root(parts.netloc), *below]), "/".join([f"memory://{parts.netloc}", *below])
