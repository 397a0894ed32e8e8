"""A model of one shard that many write at once: every order of their store calls is tried (RFC 0017).

A `World` is the log, the newest manifest, the base table, what each process does next, and puts that are on their way.
`Model.successors` gives every world that may follow: one store call of one process (a sink, an owner that writes for itself or
for clients, a client, a consumer, a compactor, the collector), a crash before or after it, a put that lands late, an answer that
is lost. A row stands for its transaction. Each rule has a switch: without it, the model must find a row that is lost, doubled or
invented, or an entry that a consumer missed.

What it leaves out: reading the log is one step; the bytes of entries; time (a silent owner may be taken over at any moment,
which is worse than any clock).
"""

from collections.abc import Collection, Iterator

from tests.model_check.engine import NETWORK
from tests.model_check.upkeep import Upkeep
from tests.model_check.worlds import (
    NOTHING,
    Base,
    Entry,
    Manifest,
    Process,
    Rule,
    Scenario,
    View,
    World,
    put_entry,
    put_manifest,
)

_UNMARKED = "unmarked"  # the row is there, and nothing says whose it is
_AT_REST = ("done", "dead", "missed")


class Model:
    """The protocol, with the rules that are in force."""

    def __init__(self, scenario: Scenario, left_out: frozenset[Rule] = frozenset()) -> None:
        self.scenario = scenario
        self._left_out = left_out
        self._upkeep = Upkeep(self.has)

    def has(self, rule: Rule) -> bool:
        return rule not in self._left_out

    @property
    def actors(self) -> int:
        return len(self.scenario.processes)

    def first(self) -> World:
        scenario = self.scenario
        return World(
            log=scenario.log,
            manifest=scenario.flushed or Manifest(version=1, epoch=scenario.epoch),
            processes=scenario.processes,
            acknowledged=scenario.acknowledged,
            crashes=scenario.crashes,
            lates=scenario.lates,
            collections=scenario.collections,
        )

    # ------------------------------------------------------------------------------------------------------ the steps

    def successors(self, world: World, asleep: Collection[int] = ()) -> Iterator[tuple[str, World]]:
        for number, process in enumerate(world.processes):
            if process.at in _AT_REST or number in asleep:
                continue
            is_upkeep = process.role in ("consume", "compact")
            step = self._upkeep.step if is_upkeep else getattr(self, f"_{process.at}")
            for what, after in step(world, number, process):
                if after is not None and len(after.log) <= self.scenario.max_entries:
                    yield f"{number} {process.role} {process.txn}: {what}", after
            if world.crashes:
                yield f"{number} crashes", self._crashed(world, number, process)
        for put in () if NETWORK in asleep else sorted(world.late, key=repr):
            yield f"late put lands: {put[:2]}", self._land(world, put)
        yield from self._upkeep.collect(world)

    def _crashed(self, world: World, number: int, process: Process) -> World:
        """Nobody goes on, except for a consumer, of which another process reads on."""
        at = "resume" if process.role == "consume" else "dead"
        return world.with_process(number, Process(process.role, process.txn, at))._replace(crashes=world.crashes - 1)

    def _land(self, world: World, put: tuple[str, int, Entry | Manifest | Base]) -> World:
        kind, slot, value = put
        after = world._replace(late=world.late - {put})
        if kind == "entry" and isinstance(value, Entry) and world.at(slot) is None:
            return after.put(slot, value)
        if kind == "manifest" and isinstance(value, Manifest) and world.manifest.version == slot - 1:
            return after._replace(manifest=value)
        if kind == "base" and isinstance(value, Base) and world.base.version == slot - 1:
            return after._replace(base=value)
        return after

    # -------------------------------------------------------------------------------------------------------- reading

    def _start(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        at = "claim" if process.is_owner else "log"
        yield "manifest", world.with_process(number, process._replace(at=at, manifest=world.manifest, view=None))

    def _log(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        assert process.manifest is not None
        view = self.view(world, process.manifest, process.role)
        if self.has(Rule.CONFIRM_AFTER_LOG):
            yield "log", world.with_process(number, process._replace(at="confirm", view=view, manifest=None))
        elif not view.hole:
            yield from self._decide(world, number, process._replace(view=view, manifest=None))
        else:
            yield "hole", world.with_process(number, process._replace(at="start", manifest=None))

    def _confirm(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        view = process.view
        assert view is not None
        if world.manifest != view.manifest:
            known = NOTHING if self.has(Rule.FORGET_UNCONFIRMED) else process.remembered | view.seen
            yield "moved", world.with_process(number, process._replace(at="start", view=None, remembered=known))
        else:
            yield from self._decide(world, number, process)

    def view(self, world: World, manifest: Manifest, role: str) -> View:
        """The log above the cursor of `manifest`."""
        tip = max(world.tip, manifest.cursor)
        generation = newest = manifest.generation
        is_open = hole = False
        announced: tuple[int, Entry] | None = None
        rows: list[str] = []
        covered, past = manifest.cursor, False
        for position in range(manifest.cursor + 1, tip + 1):
            entry = world.at(position)
            if entry is None:
                hole = True
                continue
            own = entry.epoch == manifest.epoch or (role == "flush" and not self.has(Rule.SEAL_OF_OWN_EPOCH))
            if entry.kind == "r" and entry.generation >= manifest.generation:
                if entry.generation >= generation:
                    generation, is_open = entry.generation, True
                newest = max(newest, entry.generation)
                if entry.generation == manifest.generation:
                    rows.append(entry.txn)
                else:
                    past = True
            if entry.kind == "x" and own and entry.generation >= generation:
                generation, is_open = entry.generation + 1, False
            if entry.kind == "b" and entry.epoch == manifest.epoch and entry.generation == manifest.generation:
                announced = (position, entry)
            if not past:
                covered = position
        return View(
            manifest,
            tip,
            self._is_joint(world, manifest),
            generation,
            is_open,
            tuple(rows),
            covered,
            self._map(world, manifest, tip),
            announced,
            hole,
            newest,
        )

    def _is_joint(self, world: World, manifest: Manifest) -> bool:
        if not self.has(Rule.JOIN_ONLY_JOINT):
            return True
        any_epoch = not self.has(Rule.ENTRY_OF_EPOCH)
        own = [entry for entry in world.log if entry is not None and (any_epoch or entry.epoch == manifest.epoch)]
        return bool(own) and own[-1].joint

    def _map(self, world: World, manifest: Manifest, tip: int) -> frozenset[str]:
        """The newest whole map, the transactions of that entry and of all above it, and those of the whole tail."""
        found, is_whole = set[str](), False
        for position in range(tip, 0, -1):
            entry = world.at(position)
            if entry is None or (is_whole and position <= manifest.cursor):
                continue
            decided = position <= manifest.cursor or not self.has(Rule.BULK_COUNTS_DECIDED)
            if entry.txn and entry.path != _UNMARKED and (entry.kind != "b" or decided):
                found.add(entry.txn)
            if entry.full is not None and not is_whole:
                found, is_whole = found | entry.full, True
        return frozenset(found)

    # ---------------------------------------------------------------------------------------------------------- sinks

    def _decide(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """What a sink does with a shard that it knows."""
        view = process.view
        assert view is not None
        again = process._replace(at="start", view=None)
        if view.hole:
            yield "a hole in the log", world.with_process(number, process._replace(at="damage"))
            return
        if not view.joint:
            if self.scenario.takes_over:
                yield "take over", world.with_process(number, process._replace(at="claim", manifest=view.manifest))
            yield "wait", world.with_process(number, again)
            return
        if process.txn in view.seen | process.remembered and process.role != "flush" and process.txn:
            yield "skip", _acknowledged(world, number, process)
            return
        if view.announced is not None and self.has(Rule.HELP_FIRST):
            position, mark = view.announced
            yield from self._publish(world, number, process, (mark.path, (mark.txn,)), position, again, again)
            return
        if process.role == "append":
            yield "fit", world.with_process(number, self._appending(process, view))
        elif process.role == "bulk" and not view.rows and not view.is_open:
            yield from self._announce(world, number, process, view)
        else:
            yield from self._flush(world, number, process, view)

    def _appending(self, process: Process, view: View) -> Process:
        full = view.seen if not view.is_open else None
        path = "" if self.has(Rule.CARRY_TRANSACTION) else _UNMARKED
        entry = Entry(view.manifest.epoch, "r", view.generation, process.txn, path, full, joint=True)
        known = view if process.later or process.known is not None else None
        return process._replace(at="create", position=view.tip + 1, entry=entry, view=None, generation=0, known=known)

    def _create(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        entry = process.entry
        assert entry is not None
        then = process._replace(at="check" if entry.kind == "r" else "start")
        if entry.kind == "b":
            then = process._replace(at="commit_bulk")
        again = process._replace(at="start", entry=None, position=0, known=None)
        if process.known is not None and not self.has(Rule.READ_WHAT_IS_MET):
            again = process._replace(position=process.position + 1)
        for what, after in put_entry(world, number, process, then, again):
            acknowledges = entry.kind == "r" and not self.has(Rule.LOOK_AFTER_CREATE)
            if acknowledges and what.startswith("create"):
                after = _acknowledged(after, number, process)
            yield what, after

    def _check(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        entry, manifest = process.entry, world.manifest
        assert entry is not None
        if manifest.epoch == entry.epoch and manifest.cursor < process.position:
            yield "acknowledged", self._lives_on(_acknowledged(world, number, process), number, process)
        elif self.has(Rule.AGAIN_FROM_MAP):
            yield "again", world.with_process(number, process._replace(at="start", entry=None, position=0))
        else:
            yield "believed", _acknowledged(world, number, process)

    def _lives_on(self, world: World, number: int, process: Process) -> World:
        """The next append of a sink: from what it knows, if the manifest did not move, else from the start."""
        if not process.later or process.entry is None or process.known is None:
            return world
        following = Process(process.role, process.later[0], later=process.later[1:])
        if world.manifest == process.known.manifest:
            view = process.known._replace(
                tip=process.position,
                generation=process.entry.generation,
                is_open=True,
                seen=process.known.seen | {process.txn},
            )
            following = following._replace(at="known", view=view)
        return world.with_process(number, following)

    def _known(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Skip or create without a look: the create proves that nothing came since."""
        yield from self._decide(world, number, process)

    # ------------------------------------------------------------------------------------------------- flush and bulk

    def _flush(self, world: World, number: int, process: Process, view: View) -> Iterator[tuple[str, World]]:
        manifest = view.manifest
        idle = process._replace(at="start", view=None)
        if process.role == "flush":
            idle = Process(process.role, process.txn, "done")
        if not self.has(Rule.SEAL_BEFORE_FLUSH):
            if view.rows:
                rows = (f"sst{number}.{process.attempts}", view.rows)
                yield (
                    "write",
                    world.with_process(number, process._replace(at="publish", held=_packed(rows, view.covered))),
                )
            else:
                yield "idle", world.with_process(number, idle)
            return
        empty = not self.has(Rule.SEAL_ONLY_ROWS) and not view.is_open and view.generation == manifest.generation
        if view.is_open or empty:
            seal = Entry(manifest.epoch, "x", view.generation, full=view.seen, joint=True)
            sealing = process._replace(at="create", position=view.tip + 1, entry=seal, view=None)
            yield "seal", world.with_process(number, sealing)
        elif view.rows:
            rows = (f"sst{number}.{process.attempts}", view.rows)
            yield "write", world.with_process(number, process._replace(at="publish", held=_packed(rows, view.covered)))
        else:
            yield "idle", world.with_process(number, idle)

    def _publish_step(self, process: Process) -> tuple[str, tuple[str, ...], int]:
        (covered, path), *rows = process.held
        return path, tuple(row for _, row in rows), covered

    def _publish(
        self,
        world: World,
        number: int,
        process: Process,
        given: tuple[str, tuple[str, ...]] | None = None,
        covered: int = 0,
        then: Process | None = None,
        again: Process | None = None,
    ) -> Iterator[tuple[str, World]]:
        """List a generation, if the manifest still stands where it was looked at, under the same epoch."""
        view = process.view
        assert view is not None
        if given is None:
            path, rows, covered = self._publish_step(process)
            given = (path, rows)
        next_try = Process(process.role, process.txn, attempts=process.attempts + 1)
        then, again = then or next_try, again or next_try
        latest = world.manifest
        if latest.epoch != view.manifest.epoch or latest.generation != view.manifest.generation:
            yield "others were faster", world.with_process(number, again)
            return
        yield from put_manifest(
            world, number, process, _listed(latest, *given, max(latest.cursor, covered)), then, again
        )

    def _announce(self, world: World, number: int, process: Process, view: View) -> Iterator[tuple[str, World]]:
        path = f"bulk{number}.{process.attempts}"
        mark = Entry(view.manifest.epoch, "b", view.manifest.generation, process.txn, path, view.seen, joint=True)
        if not self.has(Rule.MARK_BEFORE_BULK):
            yield from self._publish(
                world, number, process, (path, (process.txn,)), view.tip, process._replace(at="believe", view=None)
            )
            return
        announcing = process._replace(
            at="create", position=view.tip + 1, entry=mark, path=path, attempts=process.attempts + 1
        )
        yield "announce", world.with_process(number, announcing)

    def _believe(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        yield "acknowledged", _acknowledged(world, number, process)

    def _commit_bulk(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Commit what we announced; whoever helped may have been faster."""
        view, entry, latest = process.view, process.entry, world.manifest
        assert view is not None
        assert entry is not None
        again = process._replace(at="start", view=None, entry=None, position=0)
        if process.path in latest.bulks:
            yield "acknowledged", _acknowledged(world, number, process)
            return
        if latest.epoch != entry.epoch or latest.generation != entry.generation:
            yield "others were faster", world.with_process(number, again)
            return
        made = _listed(latest, process.path, (process.txn,), max(latest.cursor, process.position))
        known = process._replace(at="believe", view=None, entry=None)
        if self.has(Rule.BULK_ONE_MARK):
            yield from put_manifest(world, number, process, made, known, process)
        else:  # an unknown outcome, and it announces the same rows again at once
            anew = process._replace(at="start", view=None, entry=None, position=0, txn=process.txn)
            yield from put_manifest(world, number, process, made, known, anew)

    # ------------------------------------------------------------------------------------------------------- claiming

    def _claim(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        latest = process.manifest
        assert latest is not None
        made = latest._replace(version=latest.version + 1, epoch=latest.epoch + 1)
        then = process._replace(at="find_tip", manifest=made, view=None, generation=made.epoch)
        again = process._replace(at="start", view=None, manifest=None)
        yield from put_manifest(world, number, process, made, then, again)

    def _find_tip(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        manifest = process.manifest
        assert manifest is not None
        tip = max(world.tip, manifest.cursor)
        seen = self._map(world, manifest, tip)
        left_out = any(
            (entry := world.at(position)) is not None and entry.kind == "b"
            for position in range(manifest.cursor + 1, tip + 1)
        )
        if left_out and world.manifest.epoch != manifest.epoch and self.has(Rule.OWNER_LEAVES_OUT):
            yield "fenced", world.with_process(number, self._fenced(process))
            return
        sentinel = Entry(manifest.epoch, "s", full=seen, joint=not process.is_owner)
        yield (
            "look for the tip",
            world.with_process(number, process._replace(at="sentinel", position=tip + 1, entry=sentinel)),
        )

    def _sentinel(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        sentinel, met = process.entry, world.at(process.position)
        assert sentinel is not None
        if met is not None and met.epoch > sentinel.epoch:
            yield "fenced", world.with_process(number, self._fenced(process))
            return
        if met is not None:
            full = (sentinel.full or frozenset()) | (met.full or frozenset())
            full |= {met.txn} if met.txn and met.kind != "b" else frozenset()
            moved = process._replace(position=process.position + 1, entry=sentinel._replace(full=full))
            yield "move on", world.with_process(number, moved)
            return
        at = "replay" if process.is_owner else "start"
        then = process._replace(at=at, manifest=None, entry=None)
        yield from put_entry(world, number, process, then, process)

    def _fenced(self, process: Process) -> Process:
        at = "done" if process.is_owner else "start"
        return Process(process.role, process.txn, at, attempts=process.attempts)

    # ------------------------------------------------------------------------------------- a writer with a memory

    def _replay(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        manifest = world.manifest
        if manifest.epoch != process.generation:
            yield "fenced", world.with_process(number, self._fenced(process))
            return
        held = tuple(
            (entry.generation, entry.txn)
            for position in range(manifest.cursor + 1, process.position)
            if (entry := world.at(position)) is not None
            and entry.kind == "r"
            and entry.generation >= manifest.generation
        )
        at = "put" if process.txn and process.role == "write" else "flush_memory"
        at = "serve" if process.role == "write_for" else at
        ready = process._replace(at=at, held=held, position=process.position + 1, view=None)
        yield "replay", world.with_process(number, ready)

    def _put(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """One row, acknowledged by the put alone: nobody else may append in this epoch."""
        generation = max([world_generation for world_generation, _ in process.held], default=0)
        generation = generation or world.manifest.generation
        entry = Entry(process.generation, "r", generation, process.txn)
        putting = process._replace(entry=entry)
        then = process._replace(
            at="flush_memory", held=(*process.held, (generation, process.txn)), position=process.position + 1
        )
        met = world.at(process.position)
        lost = Process(process.role, process.txn, "done")
        known = self._map(world, world.manifest, process.position - 1)
        if process.txn in known and self.has(Rule.OWNER_KNOWS_CLIENTS):
            yield "skip", _acknowledged(world, number, process)
            return
        if met is not None:
            yield "fenced or poisoned", world.with_process(number, lost)
            return
        for what, after in put_entry(world, number, putting, then, lost):
            if what.startswith("create"):
                after = after._replace(acknowledged=after.acknowledged | {process.txn})
            yield what, after

    # ------------------------------------------------------------------------------------- an owner and its clients

    def _ask(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """A client sends its write to an owner that takes writes."""
        for owner, other in enumerate(world.processes):
            if other.at == "serve":
                yield f"ask {owner}", world.with_process(number, process._replace(at="asked", position=owner))

    def _asked(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """No answer comes from an owner that does not take writes any more: the client asks again."""
        if world.processes[process.position].at not in ("serve", "answer"):
            yield "no answer", world.with_process(number, process._replace(at="ask", attempts=1))

    def _serve(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Take the write of a client, or leave."""
        yield "leave", world.with_process(number, process._replace(at="flush_memory"))
        for client, other in enumerate(world.processes):
            if other.at == "asked" and other.position == number:
                yield from self._take(world, number, process, client)

    def _take(self, world: World, number: int, process: Process, client: int) -> Iterator[tuple[str, World]]:
        asked = world.processes[client]
        generation = max((held for held, _ in process.held), default=0) or world.manifest.generation
        is_known = self.has(Rule.CLIENT_SAYS_WHO) or not asked.attempts
        entry = Entry(process.generation, "r", generation, asked.txn, "" if is_known else _UNMARKED)
        answering = process._replace(at="answer", path=str(client))
        seen = self._map(world, world.manifest, process.position - 1)
        if is_known and asked.txn in seen and self.has(Rule.OWNER_KNOWS_CLIENTS):
            yield "skip", world.with_process(number, answering)
            return
        if not self.has(Rule.ANSWER_WRITTEN):
            world = _acknowledged(world, client, asked)
        then = answering._replace(held=(*process.held, (generation, asked.txn)), position=process.position + 1)
        lost = Process(process.role, process.txn, "done")
        yield from put_entry(world, number, process._replace(entry=entry), then, lost)

    def _answer(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        client = int(process.path)
        asked, serving = world.processes[client], process._replace(at="serve", path="", entry=None)
        if asked.at != "asked":  # it is gone, or has its answer
            yield "nobody waits", world.with_process(number, serving)
            return
        yield "answer", _acknowledged(world, client, asked).with_process(number, serving)
        if world.lates:
            unheard = world.with_process(client, asked._replace(at="ask", attempts=1)).with_process(number, serving)
            yield "the answer is lost", unheard._replace(lates=world.lates - 1)

    # ----------------------------------------------------------------------------------------- how a writer goes

    def _flush_memory(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        latest = world.manifest
        if latest.epoch != process.generation:
            yield "fenced", world.with_process(number, self._fenced(process))
            return
        left = tuple(item for item in process.held if item[0] >= latest.generation)
        if not left and process.role == "write_bulk" and process.txn not in self._map(world, latest, world.tip):
            yield "mark", world.with_process(number, self._owners_mark(process, world))
            return
        may_close = not left or not self.has(Rule.JOINT_IF_PUBLISHED)
        if process.undecided and left and not self.has(Rule.JOINT_IF_DECIDED):
            may_close = True
        if may_close:
            mark = Entry(
                process.generation, "m", full=self._map(world, latest, max(world.tip, latest.cursor)), joint=True
            )
            yield "close", world.with_process(number, process._replace(at="leave", entry=mark))
        if left:
            generation = left[0][0]
            rows = tuple(txn for number_, txn in left if number_ == generation)
            last = max(
                (
                    p
                    for p in range(1, process.position)
                    if (e := world.at(p)) is not None and e.kind == "r" and e.generation == generation
                ),
                default=latest.cursor,
            )
            made = _listed(latest, f"w{number}.{process.attempts}", rows, max(last, latest.cursor))
            retry = process._replace(attempts=process.attempts + 1)
            yield from put_manifest(world, number, process, made, retry, retry)

    def _owners_mark(self, process: Process, world: World) -> Process:
        path, seen = f"bulk{process.attempts}", self._map(world, world.manifest, world.tip)
        mark = Entry(process.generation, "b", world.manifest.generation, process.txn, path, seen)
        return process._replace(at="mark", entry=mark, path=path, attempts=process.attempts + 1)

    def _mark(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        lost = Process(process.role, process.txn, "done")
        then = process._replace(at="commit_mark", position=process.position + 1)
        yield from put_entry(world, number, process, then, lost)

    def _commit_mark(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Commit a bulk of an owner. An unknown outcome poisons it; the planted bug marks the same rows once more."""
        latest, mark = world.manifest, process.entry
        assert mark is not None
        lost = Process(process.role, process.txn, "done")
        if latest.epoch != process.generation:
            yield "fenced", world.with_process(number, lost)
        elif latest.generation != mark.generation:
            yield "it is there", _leaving(world, number, process)
        else:
            made = _listed(latest, process.path, (process.txn,), process.position - 1)
            left = process._replace(at="believe")
            again = lost if self.has(Rule.BULK_ONE_MARK) else self._owners_mark(process, world)
            for what, after in put_manifest(world, number, process, made, left, again):
                yield what, (_leaving(after, number, process) if after.processes[number] == left else after)

    def _leave(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        then = Process(process.role, process.txn, "done")
        yield from put_entry(world, number, process, then, then)

    # ------------------------------------------------------------------------------------------------------- promises

    def broken(self, world: World) -> str | None:
        manifest = world.manifest
        fresh = (rows for generation, _, rows in manifest.listed if generation > world.base.mark)
        visible = [*world.base.rows, *(row for rows in fresh for row in rows)]
        expected, first = manifest.generation, True
        for position in range(manifest.cursor + 1, len(world.log) + 1):
            entry = world.at(position)
            if entry is None or entry.kind != "r" or entry.generation < manifest.generation:
                continue
            visible.append(entry.txn)
            if not (entry.generation == expected or (entry.generation == expected + 1 and not first)):
                return f"generation {entry.generation} follows {expected}"
            expected, first = entry.generation, False
        if len(set(visible)) != len(visible):
            return f"doubled: {sorted(visible)}"
        lost = world.acknowledged - set(visible)
        if lost:
            return f"lost: {sorted(lost)}"
        if any(process.at == "damage" for process in world.processes):
            return "a hole in the log that stays"
        if any(process.at == "missed" for process in world.processes):
            return "a consumer missed an entry"
        return self._broken_feed(world)

    def _broken_feed(self, world: World) -> str | None:
        for position in range(world.floor + 1, world.manifest.cursor + 1):
            mark = world.at(position)
            if mark is not None and mark.kind == "b":
                counts = self.counts(world, position, mark)
                if counts != (mark.path in world.manifest.bulks):
                    return f"the feed {'invents' if counts else 'misses'} {mark.path}"
        return None

    def counts(self, world: World, position: int, mark: Entry) -> bool:
        """Whether the feed shows the rows of a mark at or below the cursor (D4)."""
        manifest = world.manifest
        listed = {generation: path for generation, path, _ in manifest.listed}
        if mark.generation in listed:
            return listed[mark.generation] == mark.path or not self.has(Rule.FEED_LISTED_PATH)
        for above in range(position + 1, manifest.cursor + 1):
            entry = world.at(above)
            if entry is not None and entry.kind in "rb":
                return entry.generation != mark.generation or not self.has(Rule.FEED_SAME_GENERATION)
        return True


def _packed(rows: tuple[str, tuple[str, ...]], covered: int) -> tuple[tuple[int, str], ...]:
    path, names = rows
    return ((covered, path), *((0, name) for name in names))


def _listed(latest: Manifest, path: str, rows: tuple[str, ...], cursor: int) -> Manifest:
    return latest._replace(
        version=latest.version + 1,
        cursor=cursor,
        generation=latest.generation + 1,
        listed=(*latest.listed, (latest.generation, path, rows)),
        bulks=latest.bulks | {path},
    )


def _acknowledged(world: World, number: int, process: Process) -> World:
    done = world.with_process(number, Process(process.role, process.txn, "done"))
    return done._replace(acknowledged=world.acknowledged | {process.txn})


def _leaving(world: World, number: int, process: Process) -> World:
    """The bulk of an owner is published: it goes on to close."""
    closing = process._replace(at="flush_memory", entry=None)
    return world._replace(acknowledged=world.acknowledged | {process.txn}).with_process(number, closing)
