"""The package as a whole: its names, and what an import of it costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import lance_memwal as mw

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
    assert set(typed) | {"__version__"} == set(mw.__all__) <= set(dir(mw))
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
