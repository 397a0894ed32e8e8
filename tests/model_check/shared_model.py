"""The model of shared writers: processes that keep a shard in memory and append next to each other (design rules R3 to R23).

`SharedModel` gives the first world of a scenario, every world that may follow, and the promise that a world breaks. One step is
one store operation; reading the log is one step. A process that crashes is one that takes no further step. Puts and commits may
take effect late, answers get lost, and a silent owner may be taken over at any moment.

Left out: bulk markers, turns (R9), time, several shards, indexes, schema changes, re-created tables.
"""

from collections.abc import Collection, Iterator

from tests.model_check.engine import NETWORK
from tests.model_check.shared_neighbours import CollectorSteps, ExclusiveSteps
from tests.model_check.shared_steps import SharedSteps
from tests.model_check.shared_world import ExclusiveWriter, Manifest, Rule, Scenario, SharedWriter, World


class SharedModel:
    """The protocol of shared writers in one scenario, without the rules that are left out."""

    def __init__(self, scenario: Scenario, left_out: frozenset[Rule] = frozenset()) -> None:
        self._scenario = scenario
        self._left_out = left_out
        self._shared = SharedSteps(scenario, self._has)
        self._exclusive = ExclusiveSteps(scenario, self._has)
        self._collecting = CollectorSteps(scenario, self._has)

    def _has(self, rule: Rule) -> bool:
        return rule not in self._left_out

    @property
    def actors(self) -> int:
        return len(self._scenario.actors)

    def first(self) -> World:
        scenario = self._scenario
        actors = list(scenario.actors)
        for number, known in enumerate(scenario.knows):
            writer = actors[number]
            assert isinstance(writer, SharedWriter)
            actors[number] = writer._replace(at="ready", known=known)
        return World(scenario.log, Manifest(), tuple(actors), acknowledged=scenario.acknowledged, lates=scenario.lates)

    def successors(self, world: World, asleep: Collection[int] = ()) -> Iterator[tuple[str, World]]:
        for number, actor in enumerate(world.actors):
            if number in asleep:
                continue
            if isinstance(actor, SharedWriter):
                steps, name = self._shared.step(world, number, actor), f"writer {number}"
            elif isinstance(actor, ExclusiveWriter):
                steps, name = self._exclusive.step(world, number, actor), f"exclusive writer {number}"
            else:
                steps, name = self._collecting.step(world, number, actor), f"collector {number}"
            for what, after in steps:
                yield f"{name}: {what}", after
        if NETWORK not in asleep:
            yield from self._land(world)

    def _land(self, world: World) -> Iterator[tuple[str, World]]:
        """Puts that are on their way take effect, if their place is still free."""
        for late in sorted(world.late, key=repr):
            after = world._replace(late=world.late - {late})
            if late.entry is not None and world.at(late.position) is None:
                yield f"the late {late.entry.kind} lands @{late.position}", after.put(late.position, late.entry)
            elif late.manifest is not None and late.before == world.manifest:
                yield "the late commit lands", after.publish(late.manifest, late.before.generation, late.rows)

    def broken(self, world: World) -> str | None:
        if world.fault:
            return world.fault
        manifest = world.manifest
        rows = [row for _, published in world.published for row in published]
        newest, end = manifest.generation, manifest.cursor
        for position, entry in world.tail(manifest):
            end = position
            if entry.kind == "rows" and entry.generation >= manifest.generation:
                if not newest <= entry.generation <= newest + 1:
                    return f"generation {entry.generation} follows {newest}"
                newest = entry.generation
                rows += entry.rows
        ops = [row.op for row in rows]
        if world.tip > end:
            return "there is a gap in the log"
        if len(set(ops)) != len(ops):
            return f"doubled: {sorted(ops)}"
        if not world.acknowledged.issubset(ops):
            return f"lost: {sorted(world.acknowledged.difference(ops))}"
        if not world.shown.issubset(ops):
            return f"shown and gone: {sorted(world.shown.difference(ops))}"
        if [row.value for row in rows] != list(range(1, len(rows) + 1)):
            return "an update is lost"
        return None
