"""The test kit that ships: faults for any store, a suite for new back ends, kill points and process harnesses.

The names below are the public ones; the harness modules beside them are imported by their own paths. `StoreSuite` needs
pytest and is loaded when it is asked for.
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
