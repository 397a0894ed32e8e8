"""What a caller hands over besides data: numbers, flags, names, choices.

Owns their checks, so that a wrong argument is an `InvalidInputError` with the argument's name wherever it is given, and
never an error of whatever stumbles over it later. Nothing here compares or converts a value before its type is known: foreign
objects may answer with anything.
"""

from __future__ import annotations

import difflib
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from lance_memwal.errors import InvalidInputError

_MOST = (1 << 63) - 1
_SHOWN = 60


def described(value: object) -> str:
    """A wrong value for an error text: plain ones as they are, others by their type (their text may be anything)."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = ascii(value) if isinstance(value, str) else repr(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"a value of type {type(value).__name__}"


def digits_of(text: str | bytes, most: int = _MOST) -> int | None:
    """The number that ASCII digits stand for; None if the text is anything else, or the number more than `most`."""
    if not (text.isascii() and text.isdigit()):  # what other scripts have for digits is not for `int`
        return None
    short = (text if isinstance(text, str) else text.decode()).lstrip("0")
    if len(short) > len(str(most)):  # `int` takes no text of any length
        return None
    number = int(short or "0")
    return number if number <= most else None


def check_number(name: str, value: object, *, least: int = 0, most: int = _MOST) -> int:
    """`value` if it is an integer from `least` to `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise InvalidInputError(f"{name} must be an integer from {least} to {most}, not {described(value)}")
    return int(value)


def check_seconds(name: str, value: object) -> float:
    """`value` if it is a time span: a number of seconds, 0 or more, not infinite."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise InvalidInputError(f"{name} must be a number of seconds, 0 or more, not {described(value)}")
    return float(value)


def check_timeout(timeout: object) -> float | None:
    """`timeout` if it is None (wait for ever) or a number of seconds that can be waited; what is below 0 is 0."""
    if timeout is None:
        return None
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not float(timeout) <= threading.TIMEOUT_MAX:
        raise InvalidInputError(f"timeout must be None or a number of seconds, not {described(timeout)}")
    return max(0.0, float(timeout))


def check_flag(name: str, value: object) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, not {described(value)}")
    return value


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Return only if `value` is one of these texts."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInputError(f"{name} must be one of {listed}, not {described(value)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all of them."""
    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else f"; known: {', '.join(sorted(names.values()))}"


def check_column(name: str, columns: Collection[str], what: str = "column") -> None:
    """Return only if a table with these columns has the one of this name; `what` says what it is to the caller."""
    if name not in columns:
        raise InvalidInputError(f"{what} {name!r} is not in the table; its columns: {', '.join(columns)}")


def check_text(name: str, value: object) -> str:
    """`value` if it is a text that can be stored."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} must be a text, not {described(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{name} holds characters that no storage can hold: {described(value)}") from None
    return value


def check_names(name: str, values: object) -> tuple[str, ...]:
    """The texts of a list or another collection; one text alone is not a list of them."""
    found = tuple(check_items(name, values, "texts"))
    for item in found:
        if type(item) is not str or not item.isascii():
            check_text(f"an item of {name}", item)
    return found


def check_items(name: str, values: object, what: str) -> Iterator[Any]:
    """Return the items of a list or another collection; `what` names them. A single text is not a list."""
    try:
        if not isinstance(values, (str, bytes, bytearray, memoryview)) and isinstance(values, Iterable):
            return iter(values)
    except TypeError:  # an iterable that cannot be iterated, as an array without dimensions
        pass
    raise InvalidInputError(f"{name} must be a list of {what}, not {described(values)}")


def check_callable(name: str, value: object) -> None:
    """Return only if `value` is None or can be called."""
    if value is not None and not callable(value):
        raise InvalidInputError(f"{name} must be a function, not {described(value)}")


def check_instance(name: str, value: object, kind: Any, what: str) -> None:
    """Return only if `value` is of `kind`; `what` says so in words."""
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} must be {what}, not {described(value)}")
