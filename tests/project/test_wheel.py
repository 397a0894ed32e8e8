"""The built wheel in an environment with nothing but what it requires: it works, and says in one line what an extra brings."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("wheel")
EXTRAS = ("typer", "rich", "polars", "datafusion", "pyspark", "pandas", "duckdb", "opentelemetry")


def closure(requirements: list[str]) -> set[str]:
    """The distributions that these requirements need, without extras."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        text = waiting.pop()
        name = re.split(r"[\s\[<>=~!;(]", text)[0].lower().replace("_", "-")
        if "extra ==" in text or name in found:
            continue
        try:
            waiting += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another system
        found.add(name)
    return found


def link(name: str, site: Path) -> None:
    """Everything that a distribution of this environment installed, in another one."""
    files = metadata.distribution(name).files or []
    here = Path(sysconfig.get_path("purelib"))
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).exists():
            (site / top).symlink_to(here / top)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources is built, so that nothing appears in the tree."""
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    tree.mkdir()
    for name in ("src", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        subprocess.run(["cp", "-r", ROOT / name, tree], check=True)
    for leftover in (tree / "src").glob("*.egg-info"):
        subprocess.run(["rm", "-r", leftover], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*build, "-w", place, tree], check=True, timeout=100)
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and what it requires."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as files:
        (record,) = (name for name in files.namelist() if name.endswith("dist-info/METADATA"))
        required = re.findall(r"^Requires-Dist: (.+)$", files.read(record).decode(), re.MULTILINE)
    for name in closure(required):
        link(name, site)
    install = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "-q"]
    subprocess.run([*install, "--no-deps", "--no-index", wheel], check=True, timeout=100, env=clean())
    return place / "bin" / "python"


def clean() -> dict[str, str]:
    """The variables of the environment that do not lead back to this one."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*arguments: str | Path, expected: int = 0, cwd: Path | None = None) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, env=clean(), cwd=cwd, timeout=100, check=False)
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


WORK = """
import lance_memwal as mw, pyarrow as pa
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), 2)), ("s", pa.string())])
table = mw.create_table("t", schema, primary_key="id")
with table.writer(fsync=False) as writer:
    writer.put([{"id": n, "v": [n, 0.0], "s": f"number {n}"} for n in range(300)])
    assert writer.search(vector=[7.0, 0.0], k=1)["id"].to_pylist() == [7]
assert table.get(3) == {"id": 3, "v": [3.0, 0.0], "s": "number 3"}
assert table.scan(filter="id > 297").to_table().num_rows == 2
assert table.to_dataset().count_rows() == 300
table.compact()
assert table.verify().ok
print(mw.__version__)
"""
MISSING = """
import importlib
import lance_memwal as mw
table = mw.open_table("t")
for call in (
    lambda: table.scan().to_polars(), lambda: table.scan().to_pandas(), lambda: table.sql("select 1"),
    lambda: mw.polars.scan(table), lambda: importlib.import_module("lance_memwal.spark"),
):
    try:
        call()
    except ImportError as error:
        assert isinstance(error, mw.MissingLibraryError)
        print(error)
"""


def test_it_works_without_extras_and_says_what_they_bring(python: Path, tmp_path: Path) -> None:
    for name in EXTRAS:
        assert "None" in run(python, "-c", f"import importlib.util as u; print(u.find_spec('{name}'))"), name
    assert run(python, "-c", WORK, cwd=tmp_path).strip() == metadata.version("lance-memwal")
    assert run(python, "-c", MISSING, cwd=tmp_path).splitlines() == [
        "a Polars frame needs polars: pip install 'lance-memwal[polars]'",
        "a pandas frame needs pandas: pip install 'lance-memwal[pandas]'",
        "SQL needs datafusion: pip install 'lance-memwal[sql]'",
        "a Polars frame needs polars: pip install 'lance-memwal[polars]'",
        "lance_memwal.spark needs pyspark: pip install 'lance-memwal[spark]'",
    ]


def test_the_command_line_says_what_it_needs_in_one_line(python: Path, tmp_path: Path) -> None:
    memwal = python.parent / "memwal"
    told = "memwal: the command line needs typer: pip install 'lance-memwal[cli]'\n"
    assert run(memwal, "scan", "t", expected=1) == run(python, "-m", "lance_memwal", "scan", "t", expected=1) == told
    assert run(memwal, "--version") == f"memwal {metadata.version('lance-memwal')}\n"


def test_the_wheel_holds_the_package_and_its_texts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        (record,) = (name for name in names if name.endswith("dist-info/METADATA"))
        described = files.read(record).decode()
    assert {"lance_memwal/py.typed", "lance_memwal/__init__.py", "pyspark_memwal.py"} <= names
    page = {f"lance_memwal/ui/page/{file.name}" for file in (ROOT / "src/lance_memwal/ui/page").iterdir()}
    assert {"lance_memwal/ui/page/index.html", *page} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "tools", "benchmarks")) for name in names)
    assert "Programming Language :: Python :: 3.13" in described
