"""The test kit that ships: a suite for new back ends, a store that fails on purpose, clocks that tests move.

`StoreSuite` needs pytest and is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_memwal.testing.faulty import FaultKind, FaultPlan, FaultScript, FaultyStore, SimulatedCrash, StoreCall

if TYPE_CHECKING:
    from lance_memwal.testing.store_suite import StoreSuite

__all__ = ["FaultKind", "FaultPlan", "FaultScript", "FaultyStore", "SimulatedCrash", "StoreCall", "StoreSuite"]


def __getattr__(name: str) -> Any:
    if name == "StoreSuite":
        from lance_memwal.testing.store_suite import StoreSuite

        return StoreSuite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
