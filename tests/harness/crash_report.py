"""What a run of kills or takeovers did and saw, and the verdict that a promise is broken.

Owns `CrashReport` and `CrashFailure`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.harness.kill_points import POINTS

__all__ = ["CrashFailure", "CrashReport"]


class CrashFailure(AssertionError):  # noqa: N818 - it is the verdict of a test
    """An invariant is broken."""


@dataclass(slots=True)
class CrashReport:
    """What a run did and saw."""

    kills: int = 0
    takeovers: int = 0
    lives: int = 0
    tables: int = 0
    writes: int = 0
    opens: int = 0
    killed_at: Counter[str] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    recovery_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def recovery(self, percent: float) -> float:
        """Seconds within which `percent` of the opens returned."""
        ordered = sorted(self.recovery_seconds) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def missed(self) -> str:
        """The named points that no process came to, and those that processes passed and never died or stopped at."""
        unseen = [point for point in POINTS if point not in self.reached]
        passed = [point for point in POINTS if point in self.reached and point not in self.killed_at]
        return f"points never reached: {', '.join(unseen) or 'none'}\npoints only passed: {', '.join(passed) or 'none'}"

    def __str__(self) -> str:
        places = ", ".join(f"{name} {count}" for name, count in sorted(self.killed_at.items()))
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items()))
        return (
            f"{self.kills} kills and {self.takeovers} takeovers in {self.seconds:.1f} s over {self.tables} tables: "
            f"{self.writes} acknowledged writes, 0 lost, 0 phantoms, {self.opens} opens, 0 failed\n"
            f"recovery p50 {self.recovery(50) * 1e3:.1f} ms, p99 {self.recovery(99) * 1e3:.1f} ms, "
            f"max {self.recovery(100) * 1e3:.1f} ms\nlives: {kinds}\nat: {places}"
        )
