"""The steps of those who tidy a shard up, and of those who read its changes: a collector, compactors, a consumer.

Owns `Upkeep`. Each step is one look at storage or one change of it, so that everybody may act on what is old by then.
A proposal of the collector never becomes wrong by what writers do (cursor and newest map only rise): it looks again only at
the places of consumers, as the engine does.
"""

from collections.abc import Callable, Iterator

from tests.model_check.worlds import Base, Plan, Process, Rule, World, put_manifest

_ROUNDS = 2  # of a compactor
_Steps = Iterator[tuple[str, World]]


class Upkeep:
    """What happens beside the writers; `has` says whether a rule is in force."""

    def __init__(self, has: Callable[[Rule], bool]) -> None:
        self._has = has

    # ----------------------------------------------------------------------------------------------------- collection

    def collect(self, world: World) -> _Steps:
        """The next step of the collector: propose, announce, look at the pins again, raise the floor, delete one by one."""
        plan = world.plan
        if not world.collections:
            return
        is_watched = any(process.role == "consume" for process in world.processes)
        if plan.at and is_watched and world.crashes:
            yield "the collector crashes", world._replace(plan=Plan(), crashes=world.crashes - 1)
        match plan.at:
            case "":
                dead = self._unpinned(world, self._dead(world))[: world.collections]
                if dead:
                    yield f"propose {dead}", world._replace(plan=Plan("announce" if is_watched else "delete", dead))
            case "announce" if not self._has(Rule.ANNOUNCE_FIRST):
                yield from self._look_again(world, plan.dead, then="announce_late")
            case "announce" | "announce_late":
                announced = world._replace(announced=max(world.announced, plan.dead[-1]))
                at = "look" if plan.at == "announce" and self._has(Rule.PINS_AGAIN) else "raise"
                yield f"announce {plan.dead[-1]}", announced._replace(plan=Plan(at, plan.dead))
            case "look":
                yield from self._look_again(world, plan.dead, then="raise")
            case "raise":
                raised = world._replace(floor=max(world.floor, plan.dead[-1]), plan=Plan("delete", plan.dead))
                yield f"raise the floor to {plan.dead[-1]}", raised
            case "delete":
                yield self._delete(world)

    def _look_again(self, world: World, dead: tuple[int, ...], *, then: str) -> _Steps:
        left = self._unpinned(world, dead)
        floor = world.floor if self._has(Rule.FLOOR_BELOW_PINS) else max(world.floor, world.announced)
        yield f"look again: {left}", world._replace(floor=floor, plan=Plan(then, left) if left else Plan())

    def _delete(self, world: World) -> tuple[str, World]:
        position, *others = world.plan.dead
        plan = Plan("delete", tuple(others)) if others else Plan()
        left = world.put(position, None)._replace(floor=max(world.floor, position), plan=plan)
        return f"collect {position}", left._replace(collections=world.collections - 1)

    def _dead(self, world: World) -> tuple[int, ...]:
        whole = [p for p in range(1, len(world.log) + 1) if (e := world.at(p)) is not None and e.full is not None]
        last = world.manifest.cursor if self._has(Rule.COLLECT_FLUSHED) else len(world.log)
        if self._has(Rule.KEEP_NEWEST_MAP):
            last = min(last, max(whole, default=0) - 1)
        keeps_sentinels = self._has(Rule.KEEP_SENTINELS)
        return tuple(
            position
            for position in range(1, last + 1)
            if (entry := world.at(position)) is not None and not (entry.kind == "s" and keeps_sentinels)
        )

    def _unpinned(self, world: World, dead: tuple[int, ...]) -> tuple[int, ...]:
        if world.place is None or not self._has(Rule.KEEP_FOR_CONSUMERS):
            return dead
        return tuple(position for position in dead if position <= world.place[0])

    # ----------------------------------------------------------------------------------------------------- a consumer

    def step(self, world: World, number: int, process: Process) -> _Steps:
        steps: dict[str, Callable[[World, int, Process], _Steps]] = {
            "stand": self._stand,
            "register": self._register,
            "look": self._look,
            "begin": self._begin,
            "follow": self._follow,
            "resume": self._resume,
            "fold": self._fold,
            "commit": self._commit,
            "mark": self._mark,
            "read": self._read,
            "trim": self._trim,
        }
        return steps[process.at](world, number, process)

    def _stand(self, world: World, number: int, process: Process) -> _Steps:
        """Begin at the first entry that was not collected."""
        at = "register" if self._has(Rule.RECORD_BEFORE_READING) else "follow"
        yield "stand", world.with_process(number, process._replace(at=at, position=world.floor))

    def _register(self, world: World, number: int, process: Process) -> _Steps:
        at = "look" if self._has(Rule.BEGIN_ABOVE_ANNOUNCED) else "begin"
        recorded = world._replace(place=(process.position, False))
        yield f"record {process.position}", recorded.with_process(number, process._replace(at=at))

    def _look(self, world: World, number: int, process: Process) -> _Steps:
        if max(world.announced, world.floor) <= process.position:
            yield "look", world.with_process(number, process._replace(at="begin"))
        elif world.floor > process.position:
            moved = process._replace(at="register", position=world.floor)
            yield "begin again", world.with_process(number, moved)
        else:  # what it wants is about to go: it is told so, and is no consumer
            yield "leave", world._replace(place=None).with_process(number, Process(process.role, "", "done"))

    def _begin(self, world: World, number: int, process: Process) -> _Steps:
        begun = world._replace(place=(process.position, True))
        yield "begin", begun.with_process(number, process._replace(at="follow"))

    def _follow(self, world: World, number: int, process: Process) -> _Steps:
        """Read the next entry, or keep the place."""
        following = process.position + 1
        entry = world.at(following)
        if following <= world.floor:
            yield "collected", world.with_process(number, process._replace(at="missed"))
        elif entry is not None and (entry.kind != "b" or following <= world.manifest.cursor):
            yield "read", world.with_process(number, process._replace(position=following))
        if world.place is None or world.place[0] < process.position:
            yield f"keep {process.position}", world._replace(place=(process.position, True))

    def _resume(self, world: World, number: int, process: Process) -> _Steps:
        """After a crash: from the record, if what began there got something."""
        if world.place is None or not world.place[1]:
            yield "anew", world.with_process(number, process._replace(at="stand"))
        else:
            yield "resume", world.with_process(number, process._replace(at="follow", position=world.place[0]))

    # ------------------------------------------------------------------------------------------------------ compaction

    def _fold(self, world: World, number: int, process: Process) -> _Steps:
        """Choose the oldest generation that the base table has not, from one look at both."""
        pending = [item for item in world.manifest.listed if item[0] > world.base.mark]
        if process.attempts >= _ROUNDS or not (pending or world.manifest.listed):
            return
        at = "commit" if pending and self._has(Rule.TRIM_COMPACTED) else "read"
        generation = pending[0][0] if pending else world.base.mark
        chosen = process._replace(at=at, manifest=world.manifest, generation=generation, position=world.base.version)
        yield f"fold {generation}", world.with_process(number, chosen)

    def _commit(self, world: World, number: int, process: Process) -> _Steps:
        """Rows and mark become a version of the base, if it is the next one."""
        assert process.manifest is not None
        rows = next(rows for generation, _, rows in process.manifest.listed if generation == process.generation)
        base = world.base
        if base.version != process.position and self._has(Rule.COMPACT_ON_READ):
            yield "conflict", world.with_process(number, Process("compact", "", "fold", attempts=process.attempts))
            return
        both = self._has(Rule.ROWS_AND_MARK)
        mark = max(base.mark, process.generation) if both else base.mark
        made = Base(base.version + 1, mark, tuple(sorted(base.rows + rows)))
        following = ("read" if both else "mark") if self._has(Rule.TRIM_COMPACTED) else "fold"
        then = process._replace(at=following, manifest=None)
        yield f"compact {process.generation}", world._replace(base=made).with_process(number, then)
        if world.lates and world.crashes:
            dead = world.with_process(number, Process("compact", "", "dead"))
            late = world.late | {("base", made.version, made)}
            yield "base sent, then a crash", dead._replace(late=late, lates=world.lates - 1, crashes=world.crashes - 1)

    def _mark(self, world: World, number: int, process: Process) -> _Steps:
        base = world.base._replace(version=world.base.version + 1, mark=max(world.base.mark, process.generation))
        yield "mark", world._replace(base=base).with_process(number, process._replace(at="read"))

    def _read(self, world: World, number: int, process: Process) -> _Steps:
        """Look at the manifest that is to forget what the base has."""
        through = process.generation if not self._has(Rule.TRIM_COMPACTED) else world.base.mark
        read = process._replace(at="trim", manifest=world.manifest, generation=through)
        yield "read the manifest", world.with_process(number, read)

    def _trim(self, world: World, number: int, process: Process) -> _Steps:
        latest = process.manifest
        assert latest is not None
        kept = tuple(item for item in latest.listed if item[0] > process.generation)
        done = Process("compact", "", "fold", attempts=process.attempts + 1)
        if len(kept) == len(latest.listed):
            yield "nothing to trim", world.with_process(number, done)
            return
        made = latest._replace(version=latest.version + 1, listed=kept)
        then = done if self._has(Rule.TRIM_COMPACTED) else process._replace(at="commit")
        yield from put_manifest(world, number, process, made, then, process._replace(at="read", manifest=None))
