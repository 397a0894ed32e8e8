"""The steps of processes next to shared writers: exclusive writers, which claim an epoch at any moment, and collectors."""

from collections.abc import Callable, Iterator

from tests.model_check.shared_world import (
    Collector,
    Entry,
    ExclusiveWriter,
    Late,
    Memtable,
    Row,
    Rule,
    Scenario,
    World,
)

_Steps = Iterator[tuple[str, World]]


class ExclusiveSteps:
    """The steps of exclusive writers: claim, replay, put (one request), flush, close."""

    def __init__(self, scenario: Scenario, has: Callable[[Rule], bool]) -> None:
        self._scenario = scenario
        self._has = has
        self._steps: dict[str, Callable[[World, int, ExclusiveWriter], _Steps]] = {
            "start": self._start,
            "claim": self._claim,
            "list": self._list,
            "sentinel": self._sentinel,
            "replay": self._replay,
            "run": self._run,
            "flush": self._flush,
            "done": lambda *_: iter(()),
        }

    def step(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        return self._steps[writer.at](world, number, writer)

    def _start(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        if world.manifest.epoch < self._scenario.epochs:
            claiming = writer._replace(at="claim", manifest=world.manifest)
            yield "reads the manifest", world.with_actor(number, claiming)

    def _claim(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        before = writer.manifest
        assert before is not None
        if world.manifest != before:
            yield "the claim is lost", world.with_actor(number, writer._replace(at="start", manifest=None))
            return
        made = before._replace(version=before.version + 1, epoch=before.epoch + 1)
        claimed = writer._replace(at="list", epoch=made.epoch, manifest=None)
        yield f"claims e{made.epoch}", world._replace(manifest=made).with_actor(number, claimed)

    def _list(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        listed = writer._replace(at="sentinel", position=world.tip + 1, listed=world.tip)
        yield "lists the log", world.with_actor(number, listed)

    def _sentinel(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        """R2: a sentinel at the first free position."""
        position, met = writer.position, world.at(writer.position)
        if position > self._scenario.positions:
            return
        if met is None:
            sentinel = Entry(writer.epoch, "sentinel", whole=self._whole(world, position), shared=False)
            placed = world.put(position, sentinel).with_actor(number, writer._replace(at="replay"))
            yield f"sentinel @{position}", placed
        elif met.epoch > writer.epoch:
            yield "is fenced at its sentinel", world.with_actor(number, writer._replace(at="done"))
        else:
            yield f"@{position} is taken", world.with_actor(number, writer._replace(position=position + 1))

    def _whole(self, world: World, position: int) -> frozenset[str] | None:
        return None if self._scenario.is_foreign else world.transactions(position)

    def _replay(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        """R2: check the manifest again, and read everything below the sentinel."""
        latest = world.manifest
        if latest.epoch > writer.epoch:
            yield "is fenced", world.with_actor(number, writer._replace(at="done"))
            return
        tables: dict[int, Memtable] = {}
        end = writer.position if self._has(Rule.REPLAY_TO_SENTINEL) else writer.listed + 1
        for position in range(latest.cursor + 1, end):
            entry = world.at(position)
            if entry is None:
                yield "finds a gap", world._replace(fault=f"a gap at {position} below a sentinel")
                return
            if entry.kind == "rows" and entry.generation >= latest.generation:
                _insert(tables, entry.generation, entry.rows, position)
        memtables = tuple(tables[generation] for generation in sorted(tables))
        running = writer._replace(
            at="run",
            position=writer.position + 1,
            listed=0,
            memtables=memtables,
            generation=memtables[-1].generation if memtables else latest.generation,
        )
        yield "replays", world.with_actor(number, running)

    def _run(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        has_room, is_free = writer.position <= self._scenario.positions, world.at(writer.position) is None
        if writer.todo and has_room:
            yield from self._put(world, number, writer, is_free=is_free)
        if writer.memtables and writer.flushes:
            generation = max(writer.generation, writer.memtables[-1].generation + 1)
            flushing = writer._replace(
                at="flush", manifest=world.manifest, generation=generation, flushes=writer.flushes - 1
            )
            yield "flushes", world.with_actor(number, flushing)
        is_published = not writer.todo and not writer.memtables
        if is_published and not self._scenario.is_foreign and has_room and is_free:
            closed = world.put(writer.position, self._mark(world, writer))
            yield f"leaves a mark @{writer.position}", closed.with_actor(number, _closed(writer))

    def _put(self, world: World, number: int, writer: ExclusiveWriter, *, is_free: bool) -> _Steps:
        """R4: the create alone acknowledges; what is met instead is a successor's."""
        op, position, generation = writer.todo[0], writer.position, writer.generation
        if not is_free:
            yield "is fenced", world.with_actor(number, writer._replace(at="done"))
            return
        oldest = writer.memtables[0].generation if writer.memtables else world.manifest.generation
        below = sum(1 for _ in world.published_below(oldest)) + sum(len(table.rows) for table in writer.memtables)
        rows = (Row(op, below + 1),)
        tables = {table.generation: table for table in writer.memtables}
        _insert(tables, generation, rows, position)
        written = world.put(position, self._entry(world, writer, op, rows)).acknowledge((op,))
        after = writer._replace(todo=writer.todo[1:], position=position + 1, memtables=tuple(tables.values()))
        yield f"acknowledges {op} @{position}", written.with_actor(number, after)

    def _entry(self, world: World, writer: ExclusiveWriter, op: str, rows: tuple[Row, ...]) -> Entry:
        if self._scenario.is_foreign:
            return Entry(writer.epoch, "rows", writer.generation, rows, shared=False)
        carries = self._scenario.carries_map(writer.position, "rows")
        whole = world.transactions() if carries else None
        return Entry(writer.epoch, "rows", writer.generation, rows, (op,), whole, shared=False)

    def _flush(self, world: World, number: int, writer: ExclusiveWriter) -> _Steps:
        latest, table = world.manifest, writer.memtables[0]
        if latest.epoch > writer.epoch:
            yield "is fenced at its commit", world.with_actor(number, writer._replace(at="done"))
        elif latest != writer.manifest:
            yield "the commit is lost", world.with_actor(number, writer._replace(manifest=latest))
        elif table.generation != latest.generation:
            yield "flushes", world._replace(fault=f"generation {table.generation} follows {latest.generation - 1}")
        else:
            cursor = max(latest.cursor, table.covered)
            made = latest._replace(version=latest.version + 1, cursor=cursor, generation=table.generation + 1)
            has_room = writer.position <= self._scenario.positions and world.at(writer.position) is None
            if has_room and not self._has(Rule.MARK_IF_DECIDED):
                late = world.late | {Late(before=latest, manifest=made, rows=table.rows)}
                marked = world.put(writer.position, self._mark(world, writer))._replace(late=late)
                yield "leaves a mark, its commit is on its way", marked.with_actor(number, _closed(writer))
            after = writer._replace(at="run", memtables=writer.memtables[1:], manifest=None)
            published = world.publish(made, table.generation, table.rows)
            yield f"commits up to @{cursor}", published.with_actor(number, after)

    def _mark(self, world: World, writer: ExclusiveWriter) -> Entry:
        return Entry(writer.epoch, "mark", whole=world.transactions())


def _closed(writer: ExclusiveWriter) -> ExclusiveWriter:
    return ExclusiveWriter(at="done", epoch=writer.epoch)


def _insert(tables: dict[int, Memtable], generation: int, rows: tuple[Row, ...], position: int) -> None:
    held = tables[generation].rows if generation in tables else ()
    tables[generation] = Memtable(generation, held + rows, position)


class CollectorSteps:
    """The steps of collectors: choose by a cursor that may be old, raise the floor, delete one by one."""

    def __init__(self, scenario: Scenario, has: Callable[[Rule], bool]) -> None:
        self._scenario = scenario
        self._has = has

    def step(self, world: World, number: int, collector: Collector) -> _Steps:
        if collector.at == "delete":
            position, *left = collector.dead
            at = "delete" if left else "start"
            after = collector._replace(at=at, dead=tuple(left))
            yield f"deletes @{position}", world.put(position, None).with_actor(number, after)
            return
        runs = collector.runs - 1
        if collector.at == "list":
            yield from self._choose(world, number, collector)
        elif collector.runs and world.manifest.cursor:
            listing = collector._replace(at="list", runs=runs, cursor=world.manifest.cursor)
            yield f"reads the cursor @{world.manifest.cursor}", world.with_actor(number, listing)
        if collector.at == "start" and collector.runs and world.oldest_manifest < world.manifest.version:
            newest = world._replace(oldest_manifest=world.manifest.version)
            yield "deletes old manifests", newest.with_actor(number, collector._replace(runs=runs))

    def _choose(self, world: World, number: int, collector: Collector) -> _Steps:
        """Choose what a newer whole map makes needless; without the rules, everything up to the cursor."""
        maps = (p for p in range(world.tip, 0, -1) if (e := world.at(p)) is not None and e.whole is not None)
        kept = {next(maps, 0), world.tip}
        end = collector.cursor
        if self._has(Rule.KEEP_ABOVE_MAP) and self._has(Rule.KEEP_NEWEST):
            end = min(end, *kept)
        if not self._has(Rule.KEEP_NEWEST):
            world, kept = world._replace(recorded=(world.tip, world.transactions())), set()
        dead = tuple(position for position in range(1, end + 1) if position not in kept and _may_go(world, position))
        floor = max(world.floor, *dead) if dead and self._has(Rule.FLOOR_FIRST) else world.floor
        after = Collector(collector.runs, "delete" if dead else "start", dead=dead)
        yield f"chooses {list(dead)}", world._replace(floor=floor).with_actor(number, after)


def _may_go(world: World, position: int) -> bool:
    entry = world.at(position)
    return entry is not None and entry.kind != "sentinel"
