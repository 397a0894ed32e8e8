"""Commands that show and measure: demo, bench.

Owns where the benchmarks are found.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lance_memwal.cli.options import Json
from lance_memwal.errors import InvalidInputError

__all__ = ["bench", "demo"]


def demo(
    spark: Annotated[bool, typer.Option(help="Tell the chapter with Spark too.")] = True, json: Json = False
) -> None:
    """See memwal at work on a temporary table, in about a minute."""
    from lance_memwal.cli import demo as story

    raise typer.Exit(story.main([*([] if spark else ["--no-spark"]), *(["--json"] if json else [])]))


def bench(
    only: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: a look, not a figure to quote.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="Name the cases and stop.")] = False,
    json: Json = False,
) -> None:
    """Measure side by side with pylance's own implementation (needs a checkout of the project)."""
    run = _benchmarks()
    arguments = ["--only", only, *(["--quick"] if quick else [])]
    if list_only:
        status = run(["--list"])
    elif json:
        with tempfile.NamedTemporaryFile(suffix=".json") as kept:
            with contextlib.redirect_stdout(sys.stderr):
                status = run([*arguments, "--json", kept.name])
            print(Path(kept.name).read_text(encoding="utf-8"), end="")
    else:
        status = run(arguments)
    raise typer.Exit(status)


def _benchmarks() -> Callable[[list[str]], int]:
    """The main function of the benchmarks, which are no part of the installed package."""
    checkout = Path(__file__).resolve().parents[3]
    for place in (Path.cwd(), checkout):
        if (place / "benchmarks" / "__main__.py").exists():
            if str(place) not in sys.path:
                sys.path.insert(0, str(place))
            return importlib.import_module("benchmarks.__main__").main  # type: ignore[no-any-return]
    raise InvalidInputError("the benchmarks are not installed with the package: run this in a checkout of the project")
