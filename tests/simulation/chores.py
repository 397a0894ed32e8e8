"""What compactors and collectors of simulated lives do, once.

Owns `compact`, `collect` and `newest_base`.
"""

from __future__ import annotations

from lance_memwal.compact.run import Compactor
from lance_memwal.errors import MemWalError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.store.location import Location
from lance_memwal.upkeep.gc import Collector
from tests.simulation.world import Machine

__all__ = ["collect", "compact", "newest_base"]


def newest_base(location: Location) -> NewestBase:
    """Who follows the base table of a place."""
    return NewestBase(BaseTable.need(location))


def compact(machine: Machine) -> None:
    """Fold what is published into the base table; others may be faster."""
    try:
        Compactor(machine.location, newest_base(machine.location), clock=machine.clock).run()
    except MemWalError as error:
        machine.world.expect(error)


def collect(machine: Machine) -> None:
    """Collect whatever may go, without grace."""
    try:
        Collector(machine.location, newest_base(machine.location), machine.clock).run(grace_seconds=0)
    except MemWalError as error:
        machine.world.expect(error)
