"""What notebooks show: small, escaped, and made without a look at storage."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.rows.notebook import html_of, html_of_report
from tests.kit.tables import create

HOSTILE = "<script>alert('x')</script>\"&"


class Tags(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.attributes: list[object] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check(page: str) -> Tags:
    """Only what we write is markup."""
    found = Tags(page)
    assert found.tags <= {"div", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert found.attributes == []
    return found


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    schema = pa.schema([pa.field(HOSTILE, pa.string(), nullable=False), ("n", pa.int64())])
    table = create(str(tmp_path / "<b onclick=x>"), schema, primary_key=HOSTILE)
    with table:
        table.add([{HOSTILE: "<i>", "n": 1}])
    return table


def test_tables_and_scans_show_their_columns_and_nothing_is_markup(table: mw.Table) -> None:
    scan = table.scan(filter=f"n > 0 and '{HOSTILE.replace(chr(39), '')}' != ''", order_by=["-n"], limit=3)
    for shown in (table, scan):
        found = check(shown._repr_html_())
        text = "".join(found.texts)
        assert HOSTILE in text
        assert "<b onclick=x>" in text
        assert "int64" in text
    assert "limit: 3" in text


def test_reports_show_their_figures(table: mw.Table) -> None:
    for report in (table.stats(), table.verify(), table.gc(dry_run=True), table.compact()):
        assert type(report).__name__ in check(report._repr_html_()).texts[0]
    problem = mw.Problem(HOSTILE, "<b>", "remedy")
    assert HOSTILE in check(mw.VerifyReport([problem])._repr_html_()).texts


def test_it_is_shown_without_storage(table: mw.Table) -> None:
    scan = table.scan()
    shutil.rmtree(table.uri)
    check(table._repr_html_())
    check(scan._repr_html_())


def test_it_is_small() -> None:
    page = html_of("t", {"long": "x" * 10_000}, ["a"], [[number] for number in range(5000)])
    assert len(page) < 3000
    assert "4,950 more" in page
    assert len(html_of_report(mw.VerifyReport([mw.Problem("a", "b", "c")] * 1000))) < 10_000
