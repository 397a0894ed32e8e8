"""Something that happens once, at a named point of the engine.

Owns `run_once_at`.
"""

from collections.abc import Callable

from lance_memwal import crash_points


def run_once_at(point: str, action: Callable[[], object]) -> list[str]:
    """Let `action` happen when `point` is reached for the first time; the list tells whether it was.

    Whoever calls this removes the handler afterwards (`crash_points.install(None)`).
    """
    happened: list[str] = []

    def handler(reached: str) -> None:
        if reached == point and not happened:
            happened.append(point)
            action()

    crash_points.install(handler)
    return happened
