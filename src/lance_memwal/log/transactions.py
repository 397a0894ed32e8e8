"""Idempotent writes: which (application, version) a shard has, and whether a new one may be written.

Owns the rules around the transaction map. Invariants:

1. The map of a shard is the newest whole map in its log, and the transactions of that entry and of every entry above it; per
   application the highest version. A transaction of a bulk marker counts once the cursor has reached the marker.
2. An equal version is skipped, even if its rows differ. A lower version is an error, unless the same query repeats it. An old
   version under another query's application id is an error.
3. An application that was silent for longer than its expiry leaves the map with the next whole one. Silence is measured
   by the time of the shard, which no single reading of a clock moves (`ShardTime`).
4. Every map can be written: ids are bounded in length and in number, and one that is too long is left out, since no
   write may carry it any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lance_memwal.clock import Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.types import BaseMark, EntryFooter, EntryTransaction, SeenMap, SeenTransaction, Transaction

EXPIRY_MS = 30 * 24 * 3600 * 1000
OWN_PREFIX = "memwal:"  # ids of logs: of appends in shared epochs. Earlier versions added `@` and a time
OWN_EXPIRY_MS = 3600 * 1000
MAX_ID_BYTES = 512  # of an application or a query, as JSON
MAX_APPLICATIONS = 10_000
_ENTRIES_PER_MAP = 256
_MAX_OWN = 40_000  # with the limits above a map stays below what an extension holds


def as_transaction(txn: Transaction | tuple[str, int] | None) -> Transaction | None:
    """`txn` as given by a user, checked: what is refused here would make the log unreadable."""
    if txn is None:
        return None
    if isinstance(txn, tuple) and len(txn) in (2, 3):
        txn = Transaction(*txn)
    if not isinstance(txn, Transaction) or not _is_valid(txn):
        raise InvalidInputError(f"txn must be (application, version >= 0), not {repr(txn)[:200]}")
    for name, text in (("application", txn.app), ("query", txn.query)):
        if not _is_short(text):
            raise InvalidInputError(f"the {name} of a transaction is too long: at most {MAX_ID_BYTES} bytes as JSON")
    return txn


def _is_short(text: str | None) -> bool:
    return text is None or len(text) * 12 <= MAX_ID_BYTES or len(json.dumps(text)) - 2 <= MAX_ID_BYTES


def _is_valid(txn: Transaction) -> bool:
    return (
        isinstance(txn.app, str)
        and txn.app != ""
        and isinstance(txn.version, int)
        and not isinstance(txn.version, bool)
        and 0 <= txn.version < 1 << 63
        and (txn.query is None or isinstance(txn.query, str))
    )


def is_repeat(txn: Transaction, seen: SeenMap) -> bool:
    """Whether `txn` was written already; an error if its version is lower than what the shard has."""
    known = seen.get(txn.app)
    if known is None or txn.version > known.version:
        return False
    if txn.query != known.query and txn.query is not None and known.query is not None:
        raise InvalidInputError(
            f"application {txn.app!r} is used by another query and stands at version {known.version}; use another id"
        )
    if txn.version < known.version and txn.query is None:
        raise InvalidInputError(
            f"transaction {txn.app!r} version {txn.version} is older than the shard's version {known.version}"
        )
    return True


class ShardTime:
    """The time of one shard, as one of its writers keeps it.

    The time of an entry is the wall clock, or just after the entry before. What expires is another matter: a clock that
    jumps must not make the shard forget. So the readings of one process count as one. Expiry starts from what the log
    and the clock agreed on when the shard was opened, and moves on with the monotonic clock.
    """

    __slots__ = ("_agreed_ms", "_clock", "_since", "newest_ms")

    def __init__(self, clock: Clock, newest_ms: int = 0) -> None:
        """`newest_ms` is the newest time in the log, 0 if it holds none."""
        self._clock = clock
        self.newest_ms = newest_ms
        self._agreed_ms: int | None = None
        self._since = 0.0
        if newest_ms:
            self._agree(newest_ms)

    def next_ms(self) -> int:
        """The time of an entry that is written now."""
        return max(self._clock.now_ms(), self.newest_ms + 1)

    def note(self, written_ms: int) -> None:
        """Know of an entry in the log; 0 is no time."""
        self.newest_ms = max(self.newest_ms, written_ms)
        if self._agreed_ms is None and written_ms:
            self._agree(written_ms)

    def _agree(self, written_ms: int) -> None:
        self._agreed_ms, self._since = min(written_ms, self._clock.now_ms()), self._clock.monotonic()

    @property
    def expiry_ms(self) -> int:
        """The time by which silence is measured."""
        if self._agreed_ms is None:
            return 0
        return self._agreed_ms + int((self._clock.monotonic() - self._since) * 1000)


class TransactionMap:
    """The transactions of one shard as one of its writers knows them, and when an entry must carry them all.

    Not thread-safe.
    """

    __slots__ = ("_entries_since_map", "_generation", "_seen", "leaves_out", "time")

    def __init__(self, seen: SeenMap, time: ShardTime) -> None:
        self._seen = dict(seen)
        self.time = time
        self._generation: int | None = None
        self._entries_since_map = 0
        self.leaves_out = False  # whether there was a bulk mark that is not decided

    def is_repeat(self, txn: Transaction) -> bool:
        """Whether `txn` was written already; an error if its version is lower than what the shard has."""
        return is_repeat(txn, self._seen)

    def admit(self, txn: Transaction) -> None:
        """Refuse an application that would be one too many."""
        if txn.app in self._seen:
            return
        if len(self._seen) < MAX_APPLICATIONS:
            return
        self._expire()
        own = sum(map(is_own, self._seen))
        count, most = (own, _MAX_OWN) if is_own(txn.app) else (len(self._seen) - own, MAX_APPLICATIONS)
        if count >= most:
            raise InvalidInputError(
                f"the shard knows {count} applications, at most {most}: an id is for a long-lived application that counts "
                f"its versions, not for a single write; {_forgotten_when(txn.app)}"
            )

    def merge(self, seen: SeenMap) -> None:
        """Know of everything in `seen`."""
        self._seen = merge_seen([self._seen, seen])
        if seen:
            self.time.note(newest_of(seen))

    def follow(self, before: TransactionMap) -> None:
        """Go on where `before` stood: what it knew, and the time that it kept."""
        self.keep_time(before.time)
        self.merge(before._seen)

    def keep_time(self, time: ShardTime) -> None:
        """Go by `time`, which this process kept before: what it wrote itself is no second reading of its clock."""
        time.note(self.time.newest_ms)
        self.time = time

    def take(self, footer: EntryFooter, generation: int | None = None, *, decided: bool = True) -> None:
        """Know of what an entry of `generation` says (None: it has no rows); `decided`: the cursor has reached it."""
        if footer.txns or footer.seen:
            merge_footer(self._seen, footer, decided=decided)
        self.leaves_out = self.leaves_out or (footer.bulk is not None and not decided)
        if footer.written_ms is not None:
            self.time.note(footer.written_ms)
        self._generation = self._generation if generation is None else generation
        self._entries_since_map += 1
        if is_whole(footer):
            self._entries_since_map = 0

    def footer(
        self,
        generation: int,
        txns: tuple[EntryTransaction, ...] = (),
        table: str | None = None,
        base: BaseMark | None = None,
    ) -> EntryFooter:
        """The footer of the next entry with rows. The first entry of a generation, and every 256th, has the whole map."""
        whole = generation != self._generation or self._entries_since_map + 1 >= _ENTRIES_PER_MAP
        if not whole:
            return EntryFooter(table, self.time.next_ms(), txns, base=base)
        return EntryFooter(table, self.time.next_ms(), txns, self.whole(), base=base)

    def mark(self, *, seal: int | None = None, table: str | None = None, joint: bool = False) -> EntryFooter:
        """The footer of an entry without rows: always with the whole map."""
        return EntryFooter(table, self.time.next_ms(), seen=self.whole(), seal=seal, joint=joint)

    def whole(self) -> dict[str, SeenTransaction]:
        """The map without the applications that expired, as a value of its own."""
        self._expire()
        return dict(self._seen)

    def _expire(self) -> None:
        now_ms = self.time.expiry_ms
        self._seen = {app: item for app, item in self._seen.items() if _is_live(app, item, now_ms)}


def newest_of(seen: SeenMap) -> int:
    """The newest time in a map."""
    return max((item.written_ms for item in seen.values()), default=0)


def _expiry_ms(app: str) -> int:
    return OWN_EXPIRY_MS if is_own(app) else EXPIRY_MS


def _forgotten_when(app: str) -> str:
    hours = _expiry_ms(app) // (3600 * 1000)
    silent = f"{hours // 24} days" if hours >= 24 else "an hour" if hours == 1 else f"{hours} hours"
    whose = f"an id that begins with {OWN_PREFIX!r}" if is_own(app) else "an id"
    return f"{whose} is forgotten after {silent} of silence"


def _is_live(app: str, item: SeenTransaction, now_ms: int) -> bool:
    return now_ms - item.written_ms < _expiry_ms(app) and _is_short(app) and _is_short(item.query)


def is_own(app: str) -> bool:
    """Whether an id is one that lance-memwal made, not one of the user."""
    return app.startswith(OWN_PREFIX)


def is_whole(footer: EntryFooter) -> bool:
    """Whether the entry carries a whole map."""
    return footer.seen is not None


def merge_footer(known: dict[str, SeenTransaction], footer: EntryFooter, *, decided: bool = True) -> None:
    """Add to `known` the map of an entry, and its transactions where they count."""
    _raise_to(known, footer.seen or {})
    if footer.bulk is None or decided:
        for item in footer.txns:
            txn = item.txn
            _raise_to(known, {txn.app: SeenTransaction(txn.version, footer.written_ms or 0, txn.query)})


def _raise_to(known: dict[str, SeenTransaction], seen: SeenMap) -> None:
    """Let `known` have, per application, the higher version of both; of equal ones its own."""
    for app, item in seen.items():
        if app not in known or item.version > known[app].version:
            known[app] = item


def merge_seen(maps: Iterable[SeenMap | None]) -> dict[str, SeenTransaction]:
    """Per application the highest version over `maps`."""
    merged: dict[str, SeenTransaction] = {}
    for seen in maps:
        _raise_to(merged, seen or {})
    return merged
