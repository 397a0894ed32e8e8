"""The reference misses nothing: public names, settings with their defaults, errors, variables of the environment."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import lance_memwal as mw
import lance_memwal.spark as ms

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def documented(module: str) -> set[str]:
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "reference").glob("*.md")]
    return {name for text in texts for name in re.findall(rf"^::: {module}\.(\w+)", text, re.M)}


def test_every_public_name_is_in_the_reference() -> None:
    assert documented("lance_memwal") >= set(mw.__all__) - {"__version__"}
    assert documented(r"lance_memwal\.spark") == set(ms.__all__)


def test_every_public_function_says_what_it_does() -> None:
    for name in (*mw.__all__, *ms.__all__):
        found = getattr(mw if hasattr(mw, name) else ms, name)
        if isinstance(found, type) and found.__module__.startswith("lance_memwal"):
            assert found.__doc__, name
            assert "(" not in found.__doc__.split(" ")[0], f"{name} has only the docstring that a dataclass makes"
            for member in (member for member, value in vars(found).items() if callable(value) and member[0] != "_"):
                assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


def defaults(text: str) -> dict[str, str]:
    """The first two columns of the tables of a page; a row may have several settings."""
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|", text, re.M)
    cells = [(re.findall(r"`(\w+)`", names), re.split(r"(?<!\d),(?!\d)|, ", values)) for names, values in rows]
    return {
        name: value.strip()
        for names, values in cells
        if len(names) == len(values)
        for name, value in zip(names, values, strict=True)
    }


def as_written(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size and value % size == 0:
            return f"{value // size:g} {unit}"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


@pytest.mark.parametrize("kind", [mw.WriterConfig, mw.CompactionPolicy])
def test_every_setting_has_a_line_with_its_default(kind: type) -> None:
    text = page("configuration.md")
    written = defaults(text)
    for field in dataclasses.fields(kind):
        if field.name in ("shard_id", "shard_spec_id"):  # of one writer, never stored
            assert f"`{field.name}`" in text
        else:
            assert written.get(field.name) == as_written(field.default), field.name


def test_every_variable_of_the_environment_has_a_line() -> None:
    read = {name for source in SOURCES for name in re.findall(r"\bLANCE_MEMWAL_[A-Z_]+[A-Z]\b", source)}
    assert read
    text = page("configuration.md")
    assert [name for name in sorted(read) if name not in text] == []


def test_every_error_has_a_line_with_its_remedy() -> None:
    text = page("errors.md")
    errors = [name for name in mw.__all__ if name.endswith("Error") and name != "MemWalError"]
    assert errors
    for name in errors:
        assert re.search(rf"^\| `{name}`.*\|.*\|.+\|$", text, re.M), name
