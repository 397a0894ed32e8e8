"""What operations take on an object store that answers late: seconds, requests, dollars.

Owns `Requests`, its record and its text. The operations, their counts and their prices are those of the cost model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cost_model import KINDS, Cost, measure
from benchmarks.object_store import running_service


@dataclass(frozen=True, slots=True)
class Requests:
    """Every operation of the cost model on a table with `shards` shards, with so long a wait for each answer. See `Case`."""

    name: str
    latency_ms: int
    shards: int = 1
    full_only: bool = False

    def measured(self) -> dict[str, Any]:
        """The record."""
        began = time.perf_counter()
        with running_service(self.latency_ms) as service:
            found = measure(service.uri("table"), service.options, self.shards, service.seen)
        return {
            "name": self.name,
            "latency_ms": self.latency_ms,
            "shards": self.shards,
            "seconds": round(time.perf_counter() - began, 1),
            "operations": [_operation(name, cost) for name, cost in found.items()],
        }


def _operation(name: str, cost: Cost) -> dict[str, Any]:
    kinds = {kind: int(cost.all.get(kind, 0)) for kind in KINDS}
    return {
        "name": name,
        "seconds": cost.seconds,
        **kinds,
        "ours": int(sum(cost.ours.values())),
        "dollars_per_1000": cost.dollars * 1e3,
    }


def text_of_requests(records: Sequence[Mapping[str, Any]]) -> str:
    """The operations, a line each."""
    lines = []
    for record in records:
        lines.append(f"{record['name']} ({record['seconds']:.0f} s)")
        for one in record["operations"]:
            counts = ", ".join(f"{one[kind]} {kind.upper()}" for kind in KINDS if one[kind]) or "no request"
            lines.append(
                f"    {one['name']}: {one['seconds']:.3f} s, {counts}, ${one['dollars_per_1000']:.2g} per 1,000"
            )
    return "\n".join(lines)
