"""What the site adds to mkdocs: pages from outside of docs/, links that hold in both places, pictures."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.kit.documentation import PAGES, check_docs, tool

ROOT = Path(__file__).resolve().parents[2]
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
