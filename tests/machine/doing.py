"""What does the steps: the functions of the step modules by name, and one step done to a life.

Owns `DO` and `do`. After every step the table must show the model.
"""

from collections.abc import Callable
from typing import Any

from tests.machine import following, keeping, reading, writing
from tests.machine.life import MachineLife
from tests.machine.steps import Step

DO: dict[str, Callable[..., None]] = {
    name: call
    for room in (writing, keeping, reading, following)
    for name, call in vars(room).items()
    if getattr(call, "__module__", None) == room.__name__
}


def do(life: MachineLife, step: Step) -> dict[str, list[Any]]:
    """One step, and a look at the table; returns what was answered, by what was asked."""
    name, arguments = step
    life.told = {}
    DO[name](life, **arguments)
    life.check()
    return life.told
