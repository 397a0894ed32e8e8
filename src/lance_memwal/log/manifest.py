"""The shard manifest on storage: reading the newest, claiming an epoch, committing the next version.

Owns `ShardManifestStore`. Invariants:

1. The newest manifest is the largest name of one listing. The hint is written for other implementations; it never
   decides anything here, so a missing, stale, too high or garbage hint changes nothing.
2. A version is created once (put-if-absent) and only after a rule of `lance_memwal.log.invariants` accepted it.
3. A claim whose outcome is unknown is never taken as won: it is claimed again, with a higher epoch. So is a claim above
   which a newer version is found (a slot that collection emptied can be created again by a claimer that slept).
4. A commit is judged by what the newest manifest says afterwards, not by the answer of the put. Commits of one process
   take turns: two that make the same bytes of the same version could not be told apart afterwards, and only one landed.
5. The hint is written after the verdict, best effort.
6. Fields of a newer version are kept by every commit. A shard that has any takes no claim and no flush: only what they
   mean could say whether those are right. Maintenance (a trim) is allowed.
7. What a new version is made from was read twice and was equal, or was read and is what we wrote: manifests carry no
   checksum, and a bit that flipped on the way to us would be written back for good.
8. A version v that is trusted (a listing showed it as the newest, after it was looked at) is the newest still if first v + 1
   is absent and then v is the same object as then. Collection deletes versions ascending, one by one: if v + 1 had come and
   gone, v would have gone before it. Two requests say so, in this order, and no listing. Anything else is answered by a listing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from lance_memwal.arguments import check_callable, check_number
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import (
    ConflictError,
    CorruptDataError,
    DirectoryNotFoundError,
    FencedError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.log.invariants import check_manifest_transition
from lance_memwal.log.manifest_codec import decode_manifest, encode_hint, encode_manifest, unknown_fields
from lance_memwal.process.turns import TURN_SECONDS, turn_of
from lance_memwal.store import paths
from lance_memwal.store.check import read_checked
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectMeta, PutResult
from lance_memwal.store.sequenced import read_newest, update
from lance_memwal.types import ShardManifest, ShardStatus, SsTable, check_shard_id

_LOG = logging.getLogger(__name__)
_MANY_VERSIONS = 64  # to list them takes longer than two small requests

ManifestUpdate = Callable[[ShardManifest], ShardManifest]


def with_generation(latest: ShardManifest, sstable: SsTable, covered_position: int) -> ShardManifest:
    """The next version of `latest`, which lists `sstable` as its next generation and moves the cursor with it."""
    cursor = max(latest.replay_after_wal_entry_position, covered_position)
    return replace(
        latest,
        version=latest.version + 1,
        sstables=(*latest.sstables, sstable),
        current_generation=sstable.generation + 1,
        replay_after_wal_entry_position=cursor,
        wal_entry_position_last_seen=max(latest.wal_entry_position_last_seen, cursor),
    )


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A version that was read twice and then looked at; it `is_trusted` once a listing has shown it as the newest."""

    manifest: ShardManifest
    seen: ObjectMeta
    is_trusted: bool = False


class ShardManifestStore:
    """All versions of one shard's manifest. Threads may share it."""

    def __init__(
        self,
        uri: str | Location,
        shard_id: str | uuid.UUID,
        *,
        scan_batch_size: int = 2,
        storage_options: Mapping[str, str] | None = None,
        fsync: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`scan_batch_size` is kept for the table's stored defaults; one listing makes probes needless."""
        check_number("scan_batch_size", scan_batch_size, least=1)
        self.location = resolve(uri, storage_options)
        self.shard_id = check_shard_id(shard_id)
        self._directory = paths.manifest_dir(self.shard_id)
        self.scan_batch_size = scan_batch_size
        self._fsync = fsync
        self._clock = clock
        self._last_read: ShardManifest | None = None
        self._decoded: tuple[bytes, ShardManifest] | None = None  # the digest of bytes, and what they mean
        self._sighting: _Sighting | None = None
        self._listed = 0  # names, in the last listing
        self._turn = turn_of(("manifest", self.location.key, self.shard_id), clock)

    def __repr__(self) -> str:
        return f"ShardManifestStore({self.location.describe()!r}, shard_id={self.shard_id!r})"

    # ------------------------------------------------------------------------------------------------ reading

    def list_versions(self) -> list[int]:
        """Every version on storage, ascending; collection may have left gaps."""
        names = self.location.store.list_names(self._directory)
        self._listed = len(names)
        return sorted(v for v in map(paths.parse_manifest_name, names) if v is not None)

    def written_ms(self) -> dict[int, int]:
        """When every version on storage was written, in milliseconds since 1970, by the clock of the store; ascending."""
        found = (
            (paths.parse_manifest_name(item.path.rpartition("/")[2]), item.modified_ms)
            for item in self.location.store.list(self._directory)
        )
        return dict(sorted((version, written_ms) for version, written_ms in found if version is not None))

    def is_newest(self, version: int) -> bool:
        """Whether no version above this one is on storage."""
        sighting = self._sighting
        if sighting is None or sighting.manifest.version != version:
            return self.list_versions()[-1:] == [version]
        is_newest = self._is_unmoved(sighting) if sighting.is_trusted else self.list_versions()[-1:] == [version]
        self._sighting = replace(sighting, is_trusted=True) if is_newest else None
        return is_newest

    def _is_unmoved(self, sighting: _Sighting) -> bool:
        version, store = sighting.manifest.version, self.location.store
        try:
            store.get(paths.manifest_path(self.shard_id, version + 1))
        except ObjectNotFoundError:
            try:
                return store.head(paths.manifest_path(self.shard_id, version)) == sighting.seen
            except ObjectNotFoundError:
                return False
        return False

    def _trusted(self) -> ShardManifest | None:
        """The newest version, if it is known and still that."""
        sighting = self._sighting
        if sighting is None or not sighting.is_trusted:
            return None
        if self._is_unmoved(sighting):
            return sighting.manifest
        self._sighting = None
        return None

    def read_version(self, version: int) -> ShardManifest:
        """One version, validated; `ObjectNotFoundError` if it is not there."""
        path = paths.manifest_path(self.shard_id, version)
        data = self.location.store.get(path)
        digest, known = sha256(data).digest(), self._decoded
        if known is not None and known[0] == digest and known[1].version == version:
            return known[1]  # the same bytes mean the same: long lists are not taken apart again
        manifest = decode_manifest(data, path=path, expected_version=version, expected_shard_id=self.shard_id)
        self._decoded = digest, manifest
        return manifest

    def read_latest(self) -> ShardManifest | None:
        """The newest version, or None for a shard that nobody claimed yet."""
        return self._read_newest(self._read_once)

    def _read_once(self, version: int) -> ShardManifest:
        """One version; the newest is never collected and never changes, so the last one read need not be read again."""
        last = self._last_read
        if last is None or last.version != version:
            last = self._last_read = self.read_version(version)
        return last

    def _read_twice(self, version: int) -> ShardManifest:
        """One version, of which what was read is what was read or written before."""
        known, manifest = self._last_read, self.read_version(version)
        if known == manifest:
            return manifest
        if self.read_version(version) != manifest:
            raise CorruptDataError("two reads of one manifest differ", path=paths.manifest_path(self.shard_id, version))
        self._last_read = manifest
        return manifest

    def _read_to_commit(self) -> ShardManifest | None:
        """The newest version, read twice. The first time the process also checks the store, at the same time."""
        return read_checked(self.location, partial(self._read_newest, self._read_twice), self._clock)

    def _read_newest(self, read: Callable[[int], ShardManifest]) -> ShardManifest | None:
        return read_newest(self._directory, self.list_versions, read, self._clock)

    def check_fenced(self, epoch: int) -> ShardManifest:
        """The newest manifest, or `FencedError` if it carries a higher epoch than `epoch`."""
        check_number("epoch", epoch)
        latest = self._trusted() or self._read_to_commit()
        if latest is None:
            raise CorruptDataError("the shard has no manifest", path=paths.manifest_dir(self.shard_id))
        if latest.writer_epoch > epoch:
            raise FencedError(epoch, latest.writer_epoch, f"shard {self.shard_id}")
        if latest.writer_epoch < epoch:
            raise UnavailableError(
                f"the manifests of shard {self.shard_id} end before epoch {epoch}, which was claimed"
            )
        return latest

    # ------------------------------------------------------------------------------------------------ writing

    def claim_epoch(self, spec_id: int = 0) -> tuple[int, ShardManifest]:
        """Own the shard: a new epoch, above every epoch claimed before, and the manifest that carries it."""
        check_number("spec_id", spec_id, most=(1 << 32) - 1)
        next_claim, create = partial(self._next_claim, spec_id), partial(self._is_created, make_directory=True)
        claimed = update(self._directory, self._read_to_commit, next_claim, create, clock=self._clock)
        _LOG.info("claimed shard [shard=%s, epoch=%d]", self.shard_id, claimed.writer_epoch)
        return claimed.writer_epoch, claimed

    def _next_claim(self, spec_id: int, latest: ShardManifest | None) -> ShardManifest:
        claimed = ShardManifest(version=1, shard_id=self.shard_id, shard_spec_id=spec_id, writer_epoch=1)
        if latest is not None:
            self._refuse_unknown(latest)
            if latest.status is ShardStatus.SEALED:
                raise InvalidInputError(f"shard {self.shard_id} is sealed and takes no writer; write to another shard")
            claimed = replace(latest, version=latest.version + 1, writer_epoch=latest.writer_epoch + 1)
        check_manifest_transition(latest, claimed)
        return claimed

    def commit_update(
        self, epoch: int, fn: ManifestUpdate, *, landed: Callable[[ShardManifest], bool] | None = None
    ) -> ShardManifest:
        """The manifest with `fn` applied, committed under `epoch`; `FencedError` if a higher epoch owns the shard.

        `fn` gets the newest manifest, possibly several times. `landed` recognises our change in a newer manifest that
        somebody else wrote on top of it.
        """
        check_number("epoch", epoch)
        check_callable("fn", fn)
        return self._commit(fn, epoch, landed)

    def commit_maintenance(self, fn: ManifestUpdate) -> ShardManifest:
        """Like `commit_update`, under the current epoch of the shard: for compaction, which fences no writer."""
        return self._commit(fn, None, None)

    def _commit(
        self, fn: ManifestUpdate, epoch: int | None, landed: Callable[[ShardManifest], bool] | None
    ) -> ShardManifest:
        def next_version(latest: ShardManifest) -> ShardManifest:
            updated = fn(latest)
            if updated is not latest:
                check_manifest_transition(latest, updated)
                if updated.writer_epoch != latest.writer_epoch:
                    raise InvalidInputError("an update cannot raise the epoch; claim_epoch does that")
            return updated

        newest, find = partial(self._latest_of_epoch, epoch), partial(self._find_landed, landed)
        with self._turn.taken(TURN_SECONDS, self._crowded):
            return update(self._directory, newest, next_version, self._is_created, find, self._clock)

    def _crowded(self) -> ConflictError:
        return ConflictError(
            f"committing the manifest of shard {self.shard_id}: another call of this process has not ended for "
            f"{TURN_SECONDS:g} s; retry"
        )

    def _find_landed(
        self, landed: Callable[[ShardManifest], bool] | None, updated: ShardManifest
    ) -> ShardManifest | None:
        """The newest version if it has the change of `updated`, whose create may have succeeded without an answer."""
        newest = self.read_latest()
        if newest is None or not self._holds(newest, updated, landed):
            return None
        self._write_hint(newest.version)
        return newest

    def _holds(
        self, newest: ShardManifest, updated: ShardManifest, landed: Callable[[ShardManifest], bool] | None
    ) -> bool:
        """Whether `newest` is our version, has our change by the caller's own test, or was built upon our version."""
        if newest == updated or (landed is not None and landed(newest)):
            return True
        try:
            ours, following = self.read_version(updated.version), self.read_version(updated.version + 1)
            check_manifest_transition(updated, following)
        except (ObjectNotFoundError, InvalidInputError):
            return False  # a slot that collection had emptied: what follows it was built on another version
        return ours == updated

    def _latest_of_epoch(self, epoch: int | None) -> ShardManifest:
        latest = self._read_to_commit()
        if latest is None:
            raise InvalidInputError(f"shard {self.shard_id} has no manifest to update; claim it first")
        if epoch is not None and latest.writer_epoch > epoch:
            raise FencedError(epoch, latest.writer_epoch, f"shard {self.shard_id}")
        if epoch is not None and latest.writer_epoch < epoch:
            raise InvalidInputError(f"epoch {epoch} was never claimed on shard {self.shard_id}; claim it first")
        if epoch is not None:
            self._refuse_unknown(latest)
        return latest

    def _refuse_unknown(self, manifest: ShardManifest) -> None:
        unknown = unknown_fields(manifest)
        if unknown:
            raise UnsupportedFormatError(
                f"shard {self.shard_id} can be read, but not written: its manifest is not understood by this version "
                f"({', '.join(unknown)}); write it with the version that made it, or a newer one",
                path=paths.manifest_path(self.shard_id, manifest.version),
            )

    def _is_created(self, manifest: ShardManifest, *, make_directory: bool = False) -> bool:
        """Create this version; whether this call did, and it is the newest. False if the directory is gone with its table."""
        path, data = paths.manifest_path(self.shard_id, manifest.version), encode_manifest(manifest)
        try:
            created = self.location.store.put_new(path, data, sync=self._fsync, make_directory=make_directory)
        except (ObjectExistsError, DirectoryNotFoundError):
            return False
        self._decoded = sha256(data).digest(), manifest
        if created is not PutResult.CREATED or not self.is_newest(manifest.version):
            return False
        self._last_read = manifest
        self._write_hint(manifest.version)
        return True

    def _write_hint(self, version: int) -> None:
        try:
            self.location.store_once.put(paths.manifest_hint_path(self.shard_id), encode_hint(version))
        except MemWalError as error:
            _LOG.debug("version hint not written [shard=%s]: %s", self.shard_id, error)


class SightedManifests(ShardManifestStore):
    """A store that remembers which version it looked at last: two requests then say whether that is still the newest."""

    @property
    def is_crowded(self) -> bool:
        """Whether so many versions were listed that two small requests answer faster than a listing."""
        return self._listed > _MANY_VERSIONS

    @property
    def sighted(self) -> ObjectMeta | None:
        """The object of the version that was looked at last, if there was no other since; no request."""
        sighting = self._sighting
        return None if sighting is None else sighting.seen

    def sight(self, manifest: ShardManifest) -> ObjectMeta | None:
        """Look at a version that `check_fenced` gave, or, in a store that only reads, `read_latest`.

        Once `is_newest` has confirmed it, two requests say that it is still so. Returns the object; None if it is gone.
        """
        try:
            seen = self.location.store.head(paths.manifest_path(self.shard_id, manifest.version))
        except ObjectNotFoundError:  # collected: there is a newer one
            self._sighting = None
            return None
        self._sighting = _Sighting(manifest, seen)
        return seen

    def read_again(self) -> ShardManifest | None:
        """As `read_latest`, for a store that only reads, and asks often.

        Where many versions are listed, one that was the newest is looked at: two small requests, however many there are.
        """
        known = self._trusted()
        if known is not None:
            return known
        latest = self.read_latest()
        if latest is not None and self.is_crowded:
            sighting = self._sighting
            if sighting is None or sighting.manifest is not latest:
                self.sight(latest)
            else:  # this listing has shown it as the newest, after it was looked at
                self._sighting = replace(sighting, is_trusted=True)
        return latest
