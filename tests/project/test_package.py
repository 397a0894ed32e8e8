"""The package as a whole: its names, and what an import of it costs."""

import ast
import copy
import importlib
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError
from lance_memwal.spark.refusals import error_of, error_text
from tests.harness.profile import profile, scaled

SOURCE = Path(mw.__file__)


def typed_names() -> dict[str, str]:
    """Every name that type checkers see, and the module that it is from."""
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        found |= {name.name: node.module or "" for name in node.names}
    return found


def test_every_name_is_loaded_from_where_type_checkers_see_it() -> None:
    typed = typed_names()
    assert set(typed) | {"__version__"} == set(mw.__all__)
    assert dir(mw) == sorted(mw.__all__)
    for name, module in typed.items():
        found = importlib.import_module(f"{module}.{name}") if module == "lance_memwal" else getattr(mw, name)
        assert getattr(mw, name) is found
        if module != "lance_memwal":
            assert getattr(importlib.import_module(module), name) is found


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(mw, "no_such_name")


def test_an_import_loads_no_library() -> None:
    code = "import sys; before = set(sys.modules); import lance_memwal; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"lance", "pyarrow", "numpy", "usearch", "datafusion", "polars", "obstore", "pyspark"}


def cpu_seconds(*arguments: str) -> float:
    """The processor time of a call of Python: the best of a few, since a busy machine is no slower library."""
    times = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_an_import_costs_no_more_than_that_of_lance() -> None:
    assert cpu_seconds("-c", "import lance_memwal") <= 1.2 * cpu_seconds("-c", "import lance")


def test_the_version_is_printed_at_once() -> None:
    assert cpu_seconds("-m", "lance_memwal", "--version") <= 0.3


# Errors cross from one process to another as they are: pools and Spark pickle them.

ERRORS = [
    mw.InvalidInputError("fix it"),
    mw.FencedError(1, 2),
    mw.FencedError(3, 7, "shard x"),
    mw.WriterPoisonedError("reopen"),
    mw.ConflictError("again"),
    mw.UnavailableError("later", ambiguous=False, retryable=False),
    mw.CorruptDataError("damaged", path="a/b", position=3),
    mw.UnsupportedFormatError("newer"),
    mw.CollectedError("gone"),
    mw.ClosedError("closed"),
    ObjectNotFoundError("a/b"),
    ObjectExistsError("a/b"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: mw.MemWalError) -> None:
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error), error_of(error_text(error))):
        assert type(same) is type(error)
        assert (str(same), repr(same), same.args) == (str(error), repr(error), error.args)
        assert same.__dict__ == error.__dict__
        assert same.retryable == error.retryable


def test_the_default_profile_is_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANCE_MEMWAL_PROFILE", raising=False)
    assert profile() == "ci"
    assert scaled(ci=1, prove=2) == 1


def test_prove_takes_the_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_MEMWAL_PROFILE", "prove")
    assert scaled(ci=1, prove=2) == 2


def test_a_misspelt_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_MEMWAL_PROFILE", "proof")
    with pytest.raises(InvalidInputError, match="LANCE_MEMWAL_PROFILE"):
        scaled(ci=1, prove=2)
