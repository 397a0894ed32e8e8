"""The steps of a process that appends in shared epochs, and lives on between its puts (rules R3 to R18).

The process opens the shard (manifest, log, manifest check), plans an entry from its memory, creates it, checks the manifest, and
absorbs the entries of other writers. It answers reads, seals and flushes from its memory, and takes over an epoch whose owner is
silent.
"""

from collections.abc import Callable, Iterator

from tests.model_check.shared_world import (
    Entry,
    Known,
    Late,
    Manifest,
    Row,
    Rule,
    Scenario,
    SharedWriter,
    TailRow,
    Txn,
    World,
)

_Steps = Iterator[tuple[str, World]]


def absorb(known: Known, position: int, entry: Entry) -> Known:
    """The memory of a process after it read one more entry (R6). A seal holds in its own epoch only (R17)."""
    manifest, generation, rows = known.manifest, known.generation, known.rows
    if entry.kind == "seal" and entry.epoch == manifest.epoch and entry.generation >= generation:
        generation = entry.generation + 1
    if entry.kind == "rows" and entry.generation >= manifest.generation:
        generation = max(generation, entry.generation)
        rows += tuple(TailRow(entry.generation, row, position) for row in entry.rows)
    found = known.map.union(entry.txns, entry.whole or ())
    return Known(manifest, position, generation, rows, found, known.below)


class SharedSteps:
    """The steps of shared writers in one scenario."""

    def __init__(self, scenario: Scenario, has: Callable[[Rule], bool]) -> None:
        self._scenario = scenario
        self._has = has
        self._unconfirmed = scenario.unconfirmed if has(Rule.ONE_UNCONFIRMED) else 2
        self._steps: dict[str, Callable[[World, int, SharedWriter], _Steps]] = {
            "open": self._open,
            "read": self._read,
            "confirm": self._confirm,
            "ask": self._ask,
            "sentinel": self._sentinel,
            "ready": self._ready,
            "create": self._create,
            "check": self._check,
            "conflict": self._conflict,
            "follow": self._follow,
            "answer": self._answer,
            "commit": self._commit,
        }

    def step(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        return self._steps[writer.at](world, number, writer)

    # ------------------------------------------------------------------------------------------------------- opening

    def _open(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        if writer.todo or writer.attempt or writer.reads or writer.flushes or writer.ahead:
            yield "reads the manifest", world.with_actor(number, writer._replace(at="read", manifest=world.manifest))

    def _read(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R3: the log above the cursor of the manifest that was read."""
        manifest = writer.manifest
        assert manifest is not None
        below = sum(1 for _ in world.published_below(manifest.generation))
        found = Known(manifest, manifest.cursor, manifest.generation, (), world.transactions(), below)
        newest_epoch = 0
        for position, entry in world.tail(manifest):
            found, newest_epoch = absorb(found, position, entry), max(newest_epoch, entry.epoch)
        own = [entry for entry in world.log if entry is not None and entry.epoch == manifest.epoch]
        if world.tip > found.last or newest_epoch > manifest.epoch:
            if manifest != world.manifest:
                yield "opens again", world.with_actor(number, _reset(writer))
        elif own and own[-1].shared:
            yield f"reads the log to @{found.last}", self._after_open(world, number, writer, found)
        elif any(txn in found.map for _, txn in self._undecided(number, writer)):
            asking = writer._replace(at="ask", found=found, manifest=None)
            yield "finds its attempt in an exclusive epoch", world.with_actor(number, asking)
        elif manifest == world.manifest and manifest.epoch < self._scenario.epochs:
            claimed = manifest._replace(version=manifest.version + 1, epoch=manifest.epoch + 1)
            claiming = writer._replace(at="sentinel", manifest=claimed, position=world.tip + 1)
            yield f"takes over: e{claimed.epoch}", world._replace(manifest=claimed).with_actor(number, claiming)
        elif manifest != world.manifest:
            yield "opens again", world.with_actor(number, _reset(writer))

    def _after_open(self, world: World, number: int, writer: SharedWriter, found: Known) -> World:
        if self._has(Rule.CHECK_AFTER_OPEN):
            return world.with_actor(number, writer._replace(at="confirm", found=found, manifest=None))
        return world.with_actor(number, _ready(writer, found)._replace(is_undecided=False))

    def _sentinel(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R2: the first entry of a shared epoch."""
        manifest, position = writer.manifest, writer.position
        assert manifest is not None
        met = world.at(position)
        if met is None:
            sentinel = Entry(manifest.epoch, "sentinel", whole=world.transactions(position))
            yield f"sentinel @{position}", world.put(position, sentinel).with_actor(number, _reset(writer))
        elif met.epoch > manifest.epoch:
            yield "is fenced at its sentinel", world.with_actor(number, _reset(writer))
        else:
            yield f"@{position} is taken", world.with_actor(number, writer._replace(position=position + 1))

    def _ask(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R7: the map decides an attempt, in any kind of epoch."""
        found = writer.found
        assert found is not None
        if world.manifest != found.manifest:
            yield "the manifest moved", world.with_actor(number, _reset(writer))
            return
        done = tuple(op for op in writer.attempt if self._txn(number, writer, op) in found.map)
        ahead = tuple(op for op, txn in writer.ahead if txn in found.map)
        left = _reset(writer)._replace(
            attempt=_without(writer.attempt, done),
            number=writer.number + bool(done),
            is_undecided=writer.is_undecided and not done,
            ahead=tuple(item for item in writer.ahead if item[0] not in ahead),
        )
        yield f"acknowledges {done + ahead}", world.acknowledge(done + ahead).with_actor(number, left)

    def _confirm(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """A manifest check; the one after the open compares whole manifests."""
        found = writer.found
        assert found is not None
        if writer.known is None:
            is_same = world.manifest == found.manifest
        else:
            is_same = self._is_unmoved(world, found.manifest, found.last)
        if is_same:
            yield "confirms", world.with_actor(number, _ready(writer, found)._replace(is_undecided=False))
        else:
            yield "the manifest moved: resets", world.with_actor(number, _reset(writer))

    def _is_unmoved(self, world: World, known: Manifest, position: int) -> bool:
        """The manifest check: whether the manifest in memory is still the newest one."""
        if self._scenario.checks_floor:
            return world.floor < position
        if not self._has(Rule.CHECK_NEWEST):
            return not world.oldest_manifest <= known.version + 1 <= world.manifest.version
        return world.manifest == known

    # ---------------------------------------------------------------------------------------------------------- a put

    def _ready(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """Decide earlier attempts; then put, read or flush."""
        known = writer.known
        assert known is not None
        if writer.ahead and not known.unconfirmed:
            done = tuple(op for op, txn in writer.ahead if txn in known.map)
            lost = tuple(op for op, _ in writer.ahead if op not in done)
            after = writer._replace(ahead=(), todo=lost + writer.todo)
            yield f"finds {done} in the map", world.acknowledge(done).with_actor(number, after)
            return
        done = tuple(op for op in writer.attempt if self._txn(number, writer, op) in known.map)
        if done and known.unconfirmed:
            yield f"finds {done}, unconfirmed", world.with_actor(number, _confirming(writer, known))
            return
        if done:
            after = writer._replace(attempt=_without(writer.attempt, done), number=writer.number + 1)
            yield f"finds {done} in the map", world.acknowledge(done).with_actor(number, after)
            return
        yield from self._plan(world, number, writer, known)
        if writer.ahead:
            yield "checks its creates", world.with_actor(number, _confirming(writer, known))
        elif not writer.attempt:
            yield from self._plan_read(world, number, writer)
            yield from self._plan_flush(world, number, writer, known)

    def _plan(self, world: World, number: int, writer: SharedWriter, known: Known) -> _Steps:
        """R10: choose the writes of the next entry."""
        groups = [writer.attempt] if writer.attempt else []
        if not groups:
            groups = [writer.todo[: n + 1] for n in range(min(self._scenario.group, len(writer.todo)))]
        elif len(writer.attempt) > 1 and not self._has(Rule.KEEP_ATTEMPT):
            groups.append(writer.attempt[:1])
        for group in groups:
            yield from self._plan_group(world, number, writer, known, group)

    def _plan_group(
        self, world: World, number: int, writer: SharedWriter, known: Known, group: tuple[str, ...]
    ) -> _Steps:
        skipped = tuple(op for op in group if op in known.map)
        todo, attempt = _without(writer.todo, group), writer.attempt
        if skipped and known.unconfirmed:
            yield f"finds {skipped}, unconfirmed", world.with_actor(number, _confirming(writer, known))
        elif skipped:
            after = writer._replace(todo=_without(writer.todo, skipped), attempt=_without(attempt, skipped))
            yield f"skips {skipped}", world.acknowledge(skipped).with_actor(number, after)
        elif known.last < self._scenario.positions:
            rows = tuple(Row(op, known.size + n + 1) for n, op in enumerate(group))
            if attempt and writer.entry is not None and not self._has(Rule.RESOLVE_AGAIN):
                rows = writer.entry.rows
            txns = tuple(dict.fromkeys(self._txn(number, writer, op) for op in group))
            entry = self._entry(known, "rows", self._next_generation(known), rows, txns)
            left = _without(attempt, group)
            planned = writer._replace(
                at="create", attempt=group, todo=left + todo, position=known.last + 1, entry=entry
            )
            yield f"plans {group} @{planned.position}", world.with_actor(number, planned)

    def _next_generation(self, known: Known) -> int:
        """R13: a generation ends at its limit, without a seal."""
        limit = self._scenario.row_limit
        is_full = limit and sum(item.generation == known.generation for item in known.rows) >= limit
        return known.generation + bool(is_full)

    def _entry(
        self, known: Known, kind: str, generation: int, rows: tuple[Row, ...] = (), txns: tuple[Txn, ...] = ()
    ) -> Entry:
        whole = known.map if self._scenario.carries_map(known.last + 1, kind) else None
        return Entry(known.manifest.epoch, kind, generation, rows, txns, whole)

    def _txn(self, number: int, writer: SharedWriter, op: str) -> Txn:
        """R11: a user's transaction, or the one that all other writes of the entry share."""
        return op if op.startswith("t") else f"own{number}.{writer.number}"

    def _undecided(self, number: int, writer: SharedWriter) -> list[tuple[str, Txn]]:
        return [*writer.ahead, *((op, self._txn(number, writer, op)) for op in writer.attempt)]

    def _create(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R5 (1): create the entry if its position is free. The answer may get lost, and the effect may come late."""
        position, entry, known = writer.position, writer.entry, writer.known
        assert entry is not None
        assert known is not None
        is_free, is_put = world.at(position) is None, entry.kind == "rows"
        if is_free:
            created = world.put(position, entry)
            yield f"creates {entry.kind} @{position}", self._created(created, number, writer)
            if is_put and self._may_create_ahead(writer, known):
                yield f"creates @{position}, continues", created.with_actor(number, self._ahead(number, writer, known))
        else:
            yield f"@{position} exists", world.with_actor(number, writer._replace(at="conflict"))
        if not world.lates:
            return
        unanswered = writer._replace(at="conflict")
        if is_put and self._has(Rule.KEEP_ATTEMPT):
            unanswered = writer._replace(is_undecided=True)
        elif is_put:
            unanswered = unanswered._replace(number=writer.number + 1, is_undecided=False)
        lost = world._replace(lates=world.lates - 1).with_actor(number, unanswered)
        if is_free:
            yield f"creates @{position}, the answer is lost", lost.put(position, entry)
        yield f"create @{position} is on its way", lost._replace(late=lost.late | {Late(position, entry)})

    def _created(self, world: World, number: int, writer: SharedWriter) -> World:
        """R5, R17: a manifest check is next."""
        entry, known = writer.entry, writer.known
        assert entry is not None
        assert known is not None
        if entry.kind == "rows":
            return world.with_actor(number, writer._replace(at="check", is_undecided=True))
        found = absorb(known, writer.position, entry)
        if self._has(Rule.CHECK_AFTER_SEAL):
            return world.with_actor(number, _confirming(writer, found))
        return world.with_actor(number, _ready(writer, found))

    def _may_create_ahead(self, writer: SharedWriter, known: Known) -> bool:
        most = 1 if self._has(Rule.ONE_UNCONFIRMED) else 2
        return self._scenario.creates_ahead and known.unconfirmed < most and bool(writer.todo)

    def _ahead(self, number: int, writer: SharedWriter, known: Known) -> SharedWriter:
        """R8: the next create goes ahead of the manifest check of this one."""
        assert writer.entry is not None
        found = absorb(known, writer.position, writer.entry)._replace(unconfirmed=known.unconfirmed + 1)
        tried = tuple((op, self._txn(number, writer, op)) for op in writer.attempt)
        return _ready(_decided(writer), found)._replace(ahead=writer.ahead + tried)

    def _check(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R5 (2): whether the entry counts."""
        known, entry, position, latest = writer.known, writer.entry, writer.position, world.manifest
        assert known is not None
        assert entry is not None
        acknowledged = world.acknowledge(writer.attempt)
        if not self._has(Rule.CHECK_AFTER_CREATE) or self._is_unmoved(world, known.manifest, position):
            ahead = tuple(op for op, _ in writer.ahead)
            after = _ready(_decided(writer), absorb(known, position, entry))._replace(ahead=())
            yield f"acknowledges {writer.attempt}", acknowledged.acknowledge(ahead).with_actor(number, after)
        elif self._sees_manifests and latest.epoch == known.manifest.epoch and latest.cursor < position:
            after = _reset(_decided(writer))
            yield f"acknowledges {writer.attempt}, resets", acknowledged.with_actor(number, after)
        elif not self._has(Rule.ACKNOWLEDGE_ABOVE_CURSOR):
            yield (
                f"acknowledges {writer.attempt} below the cursor",
                acknowledged.with_actor(number, _reset(_decided(writer))),
            )
        else:
            number_after = writer.number + (not self._has(Rule.KEEP_ATTEMPT))
            yield "the manifest moved", world.with_actor(number, _reset(writer)._replace(number=number_after))

    @property
    def _sees_manifests(self) -> bool:
        return self._has(Rule.CHECK_NEWEST) and not self._scenario.checks_floor

    def _conflict(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R6: read the entry at the position of our create."""
        known, entry, position = writer.known, writer.entry, writer.position
        assert known is not None
        assert entry is not None
        met = world.at(position)
        if met is None or met.epoch > known.manifest.epoch:
            why = "is collected" if met is None else "has a higher epoch"
            yield f"@{position} {why}: resets", world.with_actor(number, _reset(writer))
        elif met == entry and writer.is_undecided:
            yield f"@{position} is its own", world.with_actor(number, writer._replace(at="check"))
        else:
            yield f"absorbs @{position}", world.with_actor(number, self._after_collision(writer, known, position, met))

    def _after_collision(self, writer: SharedWriter, known: Known, position: int, met: Entry) -> SharedWriter:
        """R8: one entry may wait for the check after the next create; R7: none may while an attempt is undecided."""
        found, unconfirmed = absorb(known, position, met), known.unconfirmed + 1
        believes = not (writer.is_undecided and self._scenario.checks_if_undecided)
        if not self._has(Rule.RESOLVE_AGAIN):
            return _ready(writer, found)._replace(entry=writer.entry, is_undecided=False)
        if unconfirmed > self._unconfirmed or not believes:
            return _confirming(writer, found)
        return _ready(writer, found._replace(unconfirmed=unconfirmed))

    # ---------------------------------------------------------------------------------------------------------- reads

    def _plan_read(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        if writer.reads:
            reading = writer._replace(at="follow", reads=writer.reads - 1, acknowledged_before=world.acknowledged)
            yield "begins a read", world.with_actor(number, reading)

    def _follow(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R14: a read follows the log until a position is missing."""
        known = writer.known
        assert known is not None
        found = known
        while (entry := world.at(found.last + 1)) is not None and entry.epoch <= known.manifest.epoch:
            found = absorb(found, found.last + 1, entry)
        if world.at(found.last + 1) is not None:
            yield "meets a higher epoch", world.with_actor(number, _read_again(writer))
        else:
            yield f"follows to @{found.last}", world.with_actor(number, writer._replace(at="answer", found=found))

    def _answer(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R14: check the manifest, then answer from memory."""
        known, found = writer.known, writer.found
        assert known is not None
        assert found is not None
        if self._has(Rule.CHECK_BEFORE_READ) and not self._is_unmoved(world, known.manifest, known.last + 1):
            yield "the manifest moved: reads again", world.with_actor(number, _read_again(writer))
            return
        ops = {item.row.op for item in found.rows} | {
            row.op for row in world.published_below(found.manifest.generation)
        }
        shown = ops if self._has(Rule.READ_CONFIRMED_ROWS) else ops.union(writer.todo)
        missed = sorted(writer.acknowledged_before - shown)
        after = _ready(writer, found)._replace(acknowledged_before=frozenset())
        fault = f"a read misses {missed}" if missed else ""
        answered = world._replace(shown=world.shown | shown, fault=fault)
        yield f"reads {sorted(shown)}", answered.with_actor(number, after)

    # ---------------------------------------------------------------------------------------------------------- flush

    def _plan_flush(self, world: World, number: int, writer: SharedWriter, known: Known) -> _Steps:
        """R17, R18: seal the newest generation, or publish the oldest one that is closed."""
        if not writer.flushes or not known.rows or known.unconfirmed:
            return
        oldest, is_closed = known.oldest(), known.generation > known.manifest.generation
        if oldest and (is_closed or not self._has(Rule.SEAL_BEFORE_FLUSH)):
            covered = self._covered(known) if is_closed else known.last
            rows = tuple(item.row for item in oldest)
            flushing = writer._replace(at="commit", position=covered, flushing=rows)
            yield f"flushes {[row.op for row in rows]}", world.with_actor(number, flushing)
        elif known.last < self._scenario.positions:
            seal = self._entry(known, "seal", known.generation)
            sealing = writer._replace(at="create", position=known.last + 1, entry=seal)
            yield f"plans a seal @{known.last + 1}", world.with_actor(number, sealing)

    def _covered(self, known: Known) -> int:
        """The last position of the oldest generation, which is closed; with or without what closed it."""
        if not self._scenario.covers_seals:
            return known.oldest()[-1].position
        later = (item.position for item in known.rows if item.generation > known.manifest.generation)
        return min((position - 1 for position in later), default=known.last)

    def _commit(self, world: World, number: int, writer: SharedWriter) -> _Steps:
        """R18: publish the generation; of two that flush, one loses. The answer may get lost."""
        known = writer.known
        assert known is not None
        before = known.manifest
        if world.manifest != before:
            yield "the commit is lost", world.with_actor(number, _reset(writer))
            return
        made = Manifest(before.version + 1, before.epoch, writer.position, before.generation + 1)
        rows = tuple(item for item in known.rows if item.generation > before.generation)
        left = known._replace(manifest=made, rows=rows, below=known.below + len(writer.flushing))
        after = _ready(writer, left)._replace(flushes=writer.flushes - 1)
        published = world.publish(made, before.generation, writer.flushing)
        yield f"commits up to @{writer.position}", published.with_actor(number, after)
        if world.lates:
            late = world.late | {Late(before=before, manifest=made, rows=writer.flushing)}
            unanswered = _reset(writer)._replace(flushes=writer.flushes - 1)
            sent = world._replace(lates=world.lates - 1, late=late)
            yield "the commit is on its way", sent.with_actor(number, unanswered)


def _ready(writer: SharedWriter, known: Known) -> SharedWriter:
    """The writer, which continues with `known`."""
    return writer._replace(at="ready", known=known, found=None, manifest=None, position=0, entry=None, flushing=())


def _confirming(writer: SharedWriter, found: Known) -> SharedWriter:
    """The writer, before a manifest check that confirms `found`."""
    confirmed = found._replace(unconfirmed=0)
    return writer._replace(at="confirm", found=confirmed, position=0, entry=None)


def _reset(writer: SharedWriter) -> SharedWriter:
    """The writer without its memory; it opens again."""
    return writer._replace(at="open", known=None, found=None, manifest=None, position=0, entry=None, flushing=())


def _decided(writer: SharedWriter) -> SharedWriter:
    return writer._replace(attempt=(), number=writer.number + 1, is_undecided=False)


def _read_again(writer: SharedWriter) -> SharedWriter:
    return _reset(writer)._replace(reads=writer.reads + 1, acknowledged_before=frozenset())


def _without(ops: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(op for op in ops if op not in gone)
