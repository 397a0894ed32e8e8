"""The web page as people use it: in a browser, with eyes, keys and screen readers."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

import lance_memwal as mw
from tests.kit.pages import TOKEN, lived_in, rows

VIEWS = ("overview", "query", "storage", "timeline")
MOST_BYTES = 150_000

_HERE = Path(__file__).parent
AUDIT = (_HERE / "audit.js").read_text(encoding="utf-8")
CONTRAST = (_HERE / "contrast.js").read_text(encoding="utf-8")


def number(page: Page, name: str) -> int:
    return int(page.locator(f"#figure-{name}").get_attribute("data-value") or "-1")


def go(page: Page, view: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=view.capitalize()).click()


def opened(page: Page, link: str) -> Page:
    page.goto(link)
    page.locator("#figure-live").wait_for()
    return page


def test_numbers_are_those_of_stats(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 3)) as table, show(table) as link:
        page, stats = opened(watched.page, link), table.stats()
        assert page.locator("#table-place").inner_text() == table.uri
        assert number(page, "live") == stats.live_rows == 30
        assert number(page, "base") == stats.base_rows
        assert number(page, "lag") == stats.wal_lag_entries
        assert number(page, "debt") == stats.uncompacted_generations
        fresh = [g for shard in stats.shards for g in shard.generations if g.tier != "compacted"]
        assert number(page, "fresh") == sum(g.rows for g in fresh)
        lanes = page.locator("#shards").locator("xpath=ancestor::section").locator("tbody tr")
        expect(lanes).to_have_count(3)
        shown = {lane.locator("code").get_attribute("title"): lane.inner_text() for lane in lanes.all()}
        for shard in stats.shards:
            assert f"epoch {shard.epoch}" in shown[shard.shard_id]
            assert f"{shard.uncompacted_rows:,} rows" in shown[shard.shard_id]
        flow = page.locator(".flow .stage").all_inner_texts()
        assert [text.split("\n")[0] for text in flow] == ["Log", "Memtable", "Frozen", "SSTables", "Base table"]


def test_the_page_goes_on_while_a_writer_writes(tmp_path: Path, watched: Any, show: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with show(table) as link, table.writer(fsync=False) as writer:
        page = opened(watched.page, link)
        assert number(page, "live") == 1
        writer.put(rows(1, 2, 3))
        expect(page.locator("#figure-live")).to_have_attribute("data-value", "4")
        writer.put(rows(4))
        expect(page.locator("#figure-live")).to_have_attribute("data-value", "5")
        expect(page.locator(".plot .line").first).to_be_attached()
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#pulse-text")).to_have_text("paused")
        writer.put(rows(5))
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("#figure-live")).to_have_attribute("data-value", "6")


def test_everything_can_be_done_with_the_keyboard(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page, keys = opened(watched.page, link), watched.page.keyboard
        keys.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        keys.press("Tab")
        keys.press("Tab")
        expect(page.get_by_role("link", name="Query")).to_be_focused()
        keys.press("Enter")
        expect(page.locator("main")).to_be_focused()
        keys.press("Tab")
        expect(page.get_by_role("radio", name="Scan")).to_be_focused()
        keys.press("ArrowRight")
        expect(page.get_by_role("radio", name="SQL")).to_be_checked()
        keys.press("Tab")
        expect(page.locator("textarea")).to_be_focused()
        keys.press("Control+a")
        keys.type("select id, city from t where id = 7")
        keys.press("Control+Enter")
        expect(page.get_by_role("status")).to_contain_text("1 row")
        assert page.locator("#answer").locator("xpath=..").locator("tbody tr").inner_text().split() == ["7", "Bergen"]
        go(page, "overview")
        plot = page.get_by_role("img", name=re.compile("^Live rows"))
        plot.focus()
        keys.press("ArrowLeft")
        expect(plot).to_have_attribute("aria-label", re.compile(r"^Live rows: 30 at \d\d:"))


def test_queries_draw_what_they_read(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page = opened(watched.page, link)
        go(page, "query")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("status")).to_contain_text("30 rows")
        tiles = [text.split("\n") for text in page.locator(".plan-shard .tile").all_inner_texts()]
        assert tiles[1] == ["SSTable 3", "10 rows", "1 superseded", "9 in the answer"]
        told = page.locator(".plan-base > p").inner_text()
        assert re.fullmatch(r"\d of \d fragments? read, [\d.]+ \w+: 10 rows, 5 superseded, 5 in the answer", told)
        page.get_by_text("In words").click()
        expect(page.locator(".plan pre")).to_contain_text("newest row per (id)")
        page.get_by_text("Search", exact=True).click()
        page.get_by_role("textbox", name="Words").fill("odd")
        page.get_by_label("Words in").select_option("note")
        page.get_by_label("Best", exact=True).fill("3")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("status")).to_contain_text("3 rows")
        page.get_by_text("Get", exact=True).click()
        page.get_by_label("Key: id").fill("30")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_text("There is no row with this key.")).to_be_visible()


def test_refusals_are_words(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page = opened(watched.page, link)
        go(page, "query")
        page.get_by_text("SQL", exact=True).click()
        page.locator("textarea").fill("drop table t")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("main").get_by_role("alert")).to_contain_text("DDL not supported")
        watched.problems = [text for text in watched.problems if "400" not in text]  # Chromium reports the status
        assert table.count_rows() == 30


def test_numbers_have_the_digits_that_they_have(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page = opened(watched.page, link)
        go(page, "query")
        page.get_by_text("SQL", exact=True).click()
        page.locator("textarea").fill("select 1234567.891 as exact, cast(0.1 as float) as short from t limit 1")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("cell", name="1234567.891", exact=True)).to_be_visible()
        expect(page.get_by_role("cell", name="0.1", exact=True)).to_be_visible()


def test_storage_shows_logs_manifests_and_what_changed(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page = opened(watched.page, link)
        page.get_by_role("link", name=re.compile("^Log and manifests")).click()
        expect(page.locator(".manifests > li").first).to_contain_text("SSTable of generation 3")
        entries = page.get_by_role("button", name=re.compile("^Entry "))
        expect(entries).to_have_count(table.stats().shards[0].wal_entries)
        entries.first.click()
        expect(page.locator(".detail tr.deleted")).to_have_count(1)
        page.get_by_text("Compare two versions").click()
        page.get_by_label("Compare this version").select_option("1")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator(".compare .diff")).to_contain_text("epoch: 1 → 2")


def test_the_timeline_shows_what_happened(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        page = opened(watched.page, link)
        go(page, "timeline")
        expect(page.locator(".timeline svg [data-kind=flush]")).to_have_count(3)
        expect(page.locator(".timeline svg [data-kind=takeover]")).to_have_count(2)
        page.get_by_label("Takeover").uncheck()
        expect(page.locator(".timeline svg [data-kind=takeover]")).to_have_count(0)
        expect(page.locator(".timeline svg [data-kind=compaction]")).to_have_count(1)


def test_hostile_names_and_values_are_shown_and_do_nothing(tmp_path: Path, watched: Any, show: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), (evil, pa.string())])
    table = mw.create_table(str(tmp_path / evil.replace("/", "")), schema, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put([{"id": "<script>alert(2)</script>", evil: "<b>bold</b>"}])
        with show(table) as link:
            page = opened(watched.page, link)
            assert page.locator("h1").inner_text() == evil
            go(page, "query")
            page.get_by_role("button", name="Run").click()
            expect(page.locator("td").first).to_have_text("<script>alert(2)</script>")
            expect(page.locator("th", has_text=evil)).to_be_visible()
            assert page.locator("main script, main b, main img").count() == 0


def test_the_link_is_a_key_that_is_not_left_lying_about(tmp_path: Path, watched: Any, show: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with show(table) as link:
        page = opened(watched.page, link)
        assert TOKEN not in page.url
        page.reload()
        page.locator("#figure-live").wait_for()
        assert page.context.cookies() == []
        stranger = page.context.new_page()
        stranger.goto(link.partition("#")[0])
        expect(stranger.locator("#trouble")).to_contain_text("open the link that memwal ui printed")
        stranger.close()


def test_a_server_that_ended_is_told(tmp_path: Path, watched: Any, show_until_it_ends: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with show_until_it_ends(table) as link:
        page = opened(watched.page, link)
    expect(page.locator("#trouble")).to_contain_text("is memwal ui still running?")
    expect(page.locator("#pulse-text")).to_contain_text("last seen")
    watched.problems = [text for text in watched.problems if "ERR_CONNECTION_REFUSED" not in text]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_usable_in_both_themes(tmp_path: Path, watched: Any, show: Any, theme: str) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 2)) as table, show(table) as link:
        page = opened(watched.page, link)
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for view in VIEWS:
            go(page, view)
            if view == "query":
                page.get_by_role("button", name="Run").click()
                page.locator(".plan").wait_for()
            if view == "storage":
                page.get_by_role("button", name=re.compile("^Entry ")).first.click()
                page.locator(".detail h4").wait_for()
            page.locator("main h2").first.wait_for(state="attached")
            page.wait_for_timeout(300)
            assert page.evaluate(AUDIT) == [], view
            assert page.evaluate(CONTRAST) == [], view
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        other = "light" if theme == "dark" else "dark"
        page.get_by_label("Theme").select_option(other)
        after = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (after == before) == (other == "light")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", other)


def test_a_narrow_screen_has_room_for_everything(tmp_path: Path, watched: Any, show: Any) -> None:
    with lived_in(tmp_path / "t") as table, show(table) as link:
        watched.page.set_viewport_size({"width": 390, "height": 800})
        page = opened(watched.page, link)
        for view in VIEWS:
            go(page, view)
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_nothing_moves_for_those_who_asked_for_it(tmp_path: Path, watched: Any, show: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with show(table) as link:
        page = opened(watched.page, link)
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        assert page.evaluate("document.getAnimations().length") == 0


# ------------------------------------------------------------------------------------------------------------ pictures


class _Weather(threading.Thread):
    """Writes to a table until it is told to end."""

    def __init__(self, table: mw.Table) -> None:
        super().__init__(daemon=True)
        self._table, self._ended = table, threading.Event()

    def run(self) -> None:
        with self._table.writer(compaction=None, shared=True, fsync=False) as writer:
            number = 0
            while not self._ended.wait(0.06):
                number += 1
                writer.put(
                    rows(*range(number % 400, number % 400 + 4 + number % 5), city="Bergen" if number % 3 else None)
                )
                if number % 60 == 0:
                    writer.flush()
                if number == 90:
                    self._table.compact(max_generations=2)

    def end(self) -> None:
        self._ended.set()
        self.join(20)


@pytest.fixture
def weather() -> Any:
    """A table that was lived in, and is still written: what pictures show."""
    table = mw.create_table("memory://demo/weather", rows(*range(400)), primary_key="id", sharding=mw.Bucket("id", 3))
    for first in (0, 300):
        with table.writer(compaction=None, fsync=False) as writer:
            for start in (first, first + 60):
                writer.put(rows(*range(start, start + 150)))
                writer.flush()
        if not first:
            table.compact()
    writing = _Weather(table)
    writing.start()
    yield table
    writing.end()
    table.drop(force=True)


def _taken(page: Page, place: Path) -> None:
    page.screenshot(path=place, animations="disabled")
    assert 10_000 < place.stat().st_size <= MOST_BYTES, place


def test_pictures_of_the_page(watched: Any, show: Any, weather: mw.Table, pictures: Path) -> None:
    with show(weather) as link:
        page = watched.page
        opened(page, link)
        page.wait_for_timeout(5000)
        page.mouse.move(5, 5)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            go(page, "overview")
            page.set_viewport_size({"width": 1200, "height": 1010})
            page.locator(".plot .line").first.wait_for(state="attached")
            _taken(page, pictures / f"web-page-overview-{theme}.png")
            go(page, "query")
            page.set_viewport_size({"width": 1200, "height": 1060})
            page.get_by_label("Filter").fill("city = 'Oslo'")
            page.get_by_label("Rows", exact=True).fill("200")
            page.get_by_role("button", name="Run").click()
            page.locator(".plan").wait_for()
            page.locator("#answer").evaluate("heading => scrollTo(0, heading.offsetTop - 90)")
            _taken(page, pictures / f"web-page-query-{theme}.png")
            go(page, "timeline")
            page.set_viewport_size({"width": 1200, "height": 700})
            page.locator(".timeline svg").wait_for()
            _taken(page, pictures / f"web-page-timeline-{theme}.png")
