"""What one list of steps answered in several configurations: every answer must be that of the first one that gave it.

Owns `Answers`. A step may have nothing to say in a configuration: what it asks for is not there, or was collected, which each
life judges by itself.
"""

from __future__ import annotations

from typing import Any

from tests.machine.steps import Step

__all__ = ["Answers"]


class Answers:
    """The first answer to everything that was asked, and whose it was."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[str, list[Any]]] = {}

    def take(self, configuration: str, at: int, step: Step, told: dict[str, list[Any]]) -> None:
        """Compare what a step, the so many-th, answered; an `AssertionError` names the two that differ."""
        for what, answer in told.items():
            whose, known = self._first.setdefault((at, what), (configuration, answer))
            assert answer == known, (
                f"step {at}, {step}: {what} is {answer} in {configuration!r}, and {known} in {whose!r}"
            )
