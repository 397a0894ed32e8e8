"""What requests to object stores cost.

Owns the price list: dollars per request for standard storage in a large region, without storage, traffic and discounts.
Invariant: it is an estimate, for comparing and not for billing; local disks and memory cost nothing.
"""

from __future__ import annotations

from typing import Final

__all__ = ["price_of"]

_WRITES: Final = frozenset({"put", "put_new", "list", "list_names"})
_READS: Final = frozenset({"get", "get_range", "get_tail", "head"})
_PER_WRITE: Final = {"s3": 5e-6, "gs": 5e-6, "az": 6.5e-6, "abfss": 6.5e-6}
_PER_READ: Final = {"s3": 4e-7, "gs": 4e-7, "az": 5e-7, "abfss": 5e-7}


def price_of(scheme: str, operation: str) -> float:
    """Dollars for one request; deletes are free everywhere."""
    if operation in _WRITES:
        return _PER_WRITE.get(scheme, 0.0)
    return _PER_READ.get(scheme, 0.0) if operation in _READS else 0.0
