"""Pages of the documentation: the reference misses nothing, the site is whole, figures are those that scripts make."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from benchmarks import cost_model, plots
from benchmarks.harness import Case, Result, Sample, Side
from benchmarks.kept import as_record, kept_runs, new_run
from tests.kit.documentation import PAGES, check_docs, tool

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


# What the site adds to mkdocs: pages from outside of docs/, links that hold in both places, pictures.

site = tool("site_pages")
links = tool("reference_links")
REPOSITORY = check_docs.repository(ROOT)


@pytest.mark.parametrize(
    ("page", "written", "on_site"),
    [
        ("index.md", "../rfcs/0001-a.md", "rfcs/0001-a.md"),
        ("howto/as-of.md", "../../rfcs/0019-b.md#why", "../rfcs/0019-b.md#why"),
        ("howto/as-of.md", "change-feed.md", "change-feed.md"),
        ("rfcs/0001-a.md", "../docs/concepts.md#fencing", "../concepts.md#fencing"),
        ("project/contributing.md", "docs/index.md", "../index.md"),
        ("errors.md", "../THREAT-MODEL.md", "project/threat-model.md"),
        ("index.md", "https://lance.org", "https://lance.org"),
        ("index.md", "../examples/rag.py", f"{REPOSITORY}/blob/main/examples/rag.py"),
        ("project/readme.md", f"{REPOSITORY}/blob/main/docs/cost.md", "../cost.md"),
    ],
)
def test_a_link_leads_to_the_page_that_the_file_is(page: str, written: str, on_site: str) -> None:
    assert site.link_on_site(written, page) == on_site


def test_code_keeps_its_brackets_and_loses_what_tests_need() -> None:
    text = "```python s3\na[0](b.md)\n```\n[x](../rfcs/0001-a.md)\n"
    assert site.text_on_site(text, "index.md") == "```python\na[0](b.md)\n```\n[x](rfcs/0001-a.md)\n"


def test_a_name_of_the_library_is_a_link_once() -> None:
    seen: set[str] = set()
    line = "call `table.maintain()`, `Table.maintain` or [`mw.enable`](x.md); `mw.Bucket`, `table.nothing()`, `FencedError`"
    assert links.linked(line, seen) == (
        "call [`table.maintain()`][lance_memwal.Table.maintain], `Table.maintain` or [`mw.enable`](x.md); "
        "[`mw.Bucket`][lance_memwal.Bucket], `table.nothing()`, [`FencedError`][lance_memwal.FencedError]"
    )
    assert links.linked("# `mw.enable`", seen) == "# `mw.enable`"
    assert "lance_memwal.ShardWriter.orphan" not in links.names().values()


def test_every_light_screenshot_has_a_dark_one() -> None:
    assert (
        site.in_both_themes("![A](a/b-light.png)\n") == "![A](a/b-light.png#only-light)\n![A](a/b-dark.png#only-dark)\n"
    )
    for shot in (ROOT / "docs").rglob("*-light.png"):
        assert shot.with_name(shot.name.replace("-light.", "-dark.")).exists()


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "tools" / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"([\w/.-]+\.md)$", config, re.M))
    sections = [{"How to": []}, {"Design": []}]
    added = set(site.named_pages(site.completed(sections)))
    pages = {site.page_of(page.relative_to(ROOT).as_posix()) for page in check_docs.pages(ROOT)}
    assert sorted(pages - named - added) == []


def test_a_page_that_loads_something_from_elsewhere_is_found() -> None:
    fine = '<a href="https://lance.org">x</a><script src="a.js"></script><link rel="canonical" href="https://x/y">'
    assert site.loads_elsewhere(fine) is None
    for tag in ('<script async src="https://x/y.js">', '<link href="//x/y.css" rel="stylesheet">'):
        assert site.loads_elsewhere(fine + tag) == tag


def test_every_picture_says_what_it_shows() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert len(pictures) >= 6
    ids = set()
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        space = "{http://www.w3.org/2000/svg}"
        title, text = root.find(f"{space}title"), root.find(f"{space}desc")
        assert title is not None, picture
        assert text is not None, picture
        assert len(text.text or "") > 20, picture
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {text.get('id')}"
        ids.add(title.get("id"))
    assert len(ids) == len(pictures), "several may be parts of one page"


def test_pictures_of_pages_stand_alone_on_their_line() -> None:
    for page in PAGES:
        for line in check_docs.prose(page.read_text(encoding="utf-8")).splitlines():
            assert ".svg)" not in line or re.fullmatch(r"!\[[^\]]+\]\([^)]+\.svg\)", line), page


# The pages with figures show what their scripts make: the costs that can be counted cheaply, and the kept benchmarks.

CASES = (("a rate", "/s"), ("a cost <&>", "ms"), ("alone", "ms"))


def rows(page: str, section: str) -> dict[str, list[str]]:
    text = page.partition(f"<!-- {section} -->")[2].partition("<!-- end of")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.xdist_group("s3")
def test_the_cost_page_has_what_is_counted_now(s3_table: tuple[str, dict[str, str]]) -> None:
    shown = rows(cost_model.PAGE.read_text(encoding="utf-8"), "1 shards")
    for name, cost in cost_model.count_cheap(*s3_table).items():
        requests = sum(int(cell.replace(",", "")) for cell in shown[name][:3])
        of_lance = int(shown[name][3])
        assert sum(cost.ours.values()) == requests - of_lance, f"{name}: python -m benchmarks.cost_model --write"


def test_the_cost_page_is_whole() -> None:
    page = cost_model.PAGE.read_text(encoding="utf-8")
    one, hundred, many = (rows(page, f"{n} shards") for n in (1, 100, 10000))
    assert list(one) == list(hundred) == list(many)
    assert one[cost_model.PUT_ONE][:3] == hundred[cost_model.PUT_ONE][:3] == ["1", "0", "0"]
    assert hundred[cost_model.PUT_ALL][0] == "100"
    assert list(rows(page, "idle hours")) == ["1", "100", "10,000"]


def test_the_benchmark_page_is_made_of_the_kept_runs() -> None:
    page = plots.PAGE.read_text(encoding="utf-8")
    made, pictures = plots.rendered(kept_runs(), page)
    assert made == page, "python -m benchmarks.plots"
    for name, svg in pictures.items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == svg


def run_of(rates: tuple[float, float]) -> dict[str, Any]:
    """A run with a case whose unit is a rate, one whose unit is a cost, and one without a peer."""

    def nothing(_: object) -> Sample:
        return Sample(0.0)

    rate, cost, alone = (Case(name, nothing, None, None, unit) for name, unit in CASES)
    results = [
        Result(rate, Side(rates), Side((10.0, 10.0)), ratio=sum(rates) / 20),
        Result(cost, Side((1.0, 1.0)), Side((4.0, 4.0)), ratio=0.25),
        Result(alone, Side((1.0, 1.0)), None),
    ]
    return new_run(quick=True) | {"results": [as_record(result) for result in results]}


def test_bars_say_how_many_times_better_whatever_the_unit() -> None:
    rate, cost = plots.bars_of(run_of((20.0, 40.0)))
    assert (rate.better, rate.least, rate.greatest) == (3.0, 2.0, 4.0)
    assert (cost.name, cost.better) == ("a cost <&>", 4.0)
    svg = plots.drawing([rate, cost])
    assert "a cost &lt;&amp;&gt;" in svg
    assert "<title" in svg


def test_history_begins_with_the_second_run() -> None:
    first, second = run_of((20.0, 20.0)), run_of((40.0, 40.0))
    assert plots.history([("0.1.0", first)]) is None
    page = "".join(f"<!-- {name} --><!-- end of {name} -->" for name in ("facts", "figures", "history"))
    made, pictures = plots.rendered([("0.1.0", first), ("0.2.0", second)], page)
    assert set(pictures) == {"benchmarks.svg", "benchmark-history.svg"}
    assert "| alone | ms | 1 | 1 |  |  |  |  |  |" in made
    assert re.search(r"Run `0.2.0`.*A short run", made)
