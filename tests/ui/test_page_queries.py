"""Queries of the page: what they answer, what they refuse, and what they cost."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.ui import questions
from lance_memwal.ui.answers import MAX_ANSWER_BYTES, MAX_CELL_CHARACTERS, Refusal
from lance_memwal.ui.app import make_app
from lance_memwal.ui.questions import AT_ONCE, Desk, Limits
from tests.kit.pages import HOST, SCHEMA, TOKEN, Page, lived_in, page_of, rows
from tests.kit.writers import wait_for


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    with lived_in(tmp_path_factory.mktemp("queries") / "t") as table:
        yield table


@pytest.fixture(scope="module")
def page(table: mw.Table) -> Page:
    return page_of(table)


def test_a_scan_answers_as_the_table_does(page: Page, table: mw.Table) -> None:
    found = page.query(kind="scan", filter="city = 'Oslo'", columns="id, city", order_by="-id", limit=5)
    expected = table.scan(["id", "city"], "city = 'Oslo'", 5, order_by=["-id"]).to_table()
    assert found["rows"] == [list(row.values()) for row in expected.to_pylist()]
    assert [column["name"] for column in found["columns"]] == ["id", "city"]
    assert found["more"]
    assert not page.query(kind="scan", limit=30)["more"]


def test_sql_answers_as_the_table_does(page: Page, table: mw.Table) -> None:
    text = "select city, count(*) as n from t group by city order by city"
    assert page.query(kind="sql", sql=text)["rows"] == [list(row.values()) for row in table.sql(text).to_pylist()]
    twice = page.query(kind="sql", sql="select a.id, b.id from t a join t b on a.id = b.id where a.id = 3")
    assert twice["rows"] == [[3, 3]]


def test_the_plan_of_datafusion_can_be_asked_for(page: Page) -> None:
    found = page.query(kind="sql", sql="/* why? */ EXPLAIN select city from t", limit=1)
    assert "plan" in found["rows"][0][0]


def test_get_and_search_answer_as_the_table_does(page: Page) -> None:
    assert page.query(kind="get", key="7")["rows"][0][0] == 7
    assert page.query(kind="get", key="30")["rows"] == []
    assert [row[0] for row in page.query(kind="search", vector="[12, 1]", k=1)["rows"]] == [12]
    assert {row[0] for row in page.query(kind="search", text="odd", column="note", k=100)["rows"]} == set(
        range(1, 30, 2)
    )
    both = page.query(kind="search", text="odd", vector="[12, 1]", column="note, vec", k=3)
    assert (both["columns"][-1]["name"], len(both["rows"])) == ("_relevance", 3)


@pytest.mark.parametrize(
    "text",
    [
        "create table u as select 1",
        "create view v as select 1",
        "drop table t",
        "insert into t values (1, 'a', 'b', null)",
        "delete from t",
        "update t set city = 'x'",
        "copy (select 1) to '{place}/stolen.csv'",
        "create external table u stored as csv location '/etc/passwd'",
        "set datafusion.execution.batch_size = 1",
        "prepare p as select 1",
        "begin",
        "select * from '/etc/passwd'",
        "select * from read_csv('/etc/passwd')",
        "select 1; drop table t",
    ],
)
def test_sql_that_is_no_query_is_refused(page: Page, table: mw.Table, tmp_path: Path, text: str) -> None:
    text = text.format(place=tmp_path)
    status, kind, _ = page.problem("POST", "/api/query", json={"kind": "sql", "sql": text})
    assert (status, kind) == (400, "InvalidInputError")
    with pytest.raises(mw.InvalidInputError):
        table.sql(text)
    assert not (tmp_path / "stolen.csv").exists()
    assert table.count_rows() == 30


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ({}, "kind"),
        ({"kind": "drop"}, "kind"),
        ({"kind": ["scan"]}, "kind"),
        ({"kind": "scan", "limit": 0}, "limit"),
        ({"kind": "scan", "limit": 10**9}, "limit"),
        ({"kind": "scan", "limit": True}, "limit"),
        ({"kind": "scan", "limit": "5"}, "limit"),
        ({"kind": "scan", "filter": 5}, "filter"),
        ({"kind": "scan", "filter": "nothing = 1"}, "nothing"),
        ({"kind": "scan", "columns": "nothing"}, "nothing"),
        ({"kind": "sql"}, "query"),
        ({"kind": "sql", "sql": "selec"}, "query"),
        ({"kind": "get"}, "key"),
        ({"kind": "get", "key": "abc"}, "int64"),
        ({"kind": "search"}, "vector"),
        ({"kind": "search", "vector": '[1, "a"]'}, "vector"),
        ({"kind": "search", "vector": f"[1, {10**400}]"}, "vector"),
        ({"kind": "scan", "filter": f"id > {' + '.join(['1'] * 1500)}"}, "parts"),
        ({"kind": "search", "vector": "[1, 2, 3]"}, "2"),
    ],
)
def test_what_does_not_fit_is_said_in_words(page: Page, question: dict[str, Any], word: str) -> None:
    status, kind, text = page.problem("POST", "/api/query", json=question)
    assert (status, kind) == (400, "InvalidInputError")
    assert word in text


def test_errors_that_nobody_foresaw_tell_their_type_alone(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("a row of the table")

    monkeypatch.setitem(questions._KINDS, "scan", fails)
    status, kind, text = page.problem("POST", "/api/query", json={"kind": "scan"})
    assert (status, kind) == (500, "Unexpected")
    assert "KeyError" in text
    assert "a row of the table" not in text


def test_answers_are_bounded(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("large", pa.list_(pa.float32()))]
    )
    data = [{"id": i, "text": "é" * (MAX_CELL_CHARACTERS + 1), "large": [0.5] * 100} for i in range(1000)]
    table = mw.create_table(str(tmp_path / "t"), pa.Table.from_pylist(data * 3, schema))
    answer = page_of(table).ask("POST", "/api/query", json={"kind": "scan", "limit": 1000})
    found = answer.json()
    assert len(answer.content) < 3 * MAX_ANSWER_BYTES
    assert found["more"]
    assert found["rows"][0] == [0, "é" * MAX_CELL_CHARACTERS + "…", "[0.5, 0.5, 0.5, 0.5, … 100 values]"]
    assert found["cut"] >= 2


def test_values_that_json_has_no_name_for(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float64()), ("big", pa.int64()), ("raw", pa.binary()), ("none", pa.null())])
    data = [
        {"x": float("nan"), "big": 2**60, "raw": b"\xff\x00", "none": None},
        {"x": float("-inf"), "big": 1, "raw": None},
    ]
    table = mw.create_table(str(tmp_path / "t"), pa.Table.from_pylist(data, schema).drop_columns(["none"]))
    found = page_of(table).query(kind="sql", sql="select *, null as none from t order by big")
    assert found["rows"] == [["-inf", 1, None, None], ["nan", str(2**60), "/wA=", None]]


def test_time_is_bounded(table: mw.Table) -> None:
    page = page_of(table, max_seconds=0.0)
    for question in ({"kind": "scan"}, {"kind": "sql", "sql": "select count(*) from t where city = 'a'"}):
        status, kind, text = page.problem("POST", "/api/query", json=question)
        assert (status, kind) == (503, "UnavailableError")
        assert "ask for less" in text


class _Held:
    """A query that runs until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go, self.ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def __call__(self, _table: Any, _question: Any, limits: Limits) -> dict[str, Any]:
        self.begun.release()
        try:
            while not self.let_go.wait(0.01):
                limits.check()
            return {"rows": []}
        finally:
            self.ended.release()


def test_sql_that_computes_for_ever_is_stopped(table: mw.Table) -> None:
    page = page_of(table, max_seconds=0.5)
    asked = {"kind": "sql", "sql": "select sum(value) from generate_series(1, 1000000000000)"}
    status, _, text = page.problem("POST", "/api/query", json=asked)
    assert (status, "ask for less" in text) == (503, True)
    wait_for(lambda: page.ask("POST", "/api/query", json={"kind": "sql", "sql": "select 1"}).status_code != 429)


def test_a_client_has_one_query_at_a_time_and_all_of_them_few(table: mw.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _Held()
    monkeypatch.setitem(questions._KINDS, "scan", held)
    desk = Desk(table)
    running = [desk.begin("0", {"kind": "scan"})]
    with pytest.raises(Refusal, match="still running") as refused:
        desk.begin("0", {"kind": "scan"})
    assert refused.value.status == 429
    running += [desk.begin(str(n), {"kind": "scan"}) for n in range(1, AT_ONCE)]
    with pytest.raises(Refusal, match="try again") as refused:
        desk.begin("another", {"kind": "scan"})
    assert refused.value.status == 503
    held.let_go.set()
    for one in running:
        one.answer.result(30)
    desk.begin("0", {"kind": "scan"}).answer.result(30)
    desk.close()


def test_a_desk_that_closes_ends_what_runs(table: mw.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _Held()
    monkeypatch.setitem(questions._KINDS, "scan", held)
    desk = Desk(table)
    running = desk.begin("0", {"kind": "scan"})
    assert held.begun.acquire(timeout=30)
    desk.close()
    with pytest.raises(Refusal, match="cancelled"):
        running.answer.result(30)


def test_a_query_that_nobody_waits_for_ends(table: mw.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _Held()
    monkeypatch.setitem(questions._KINDS, "scan", held)
    app = make_app(table, hosts=[HOST], token=TOKEN)
    gone, sent = asyncio.Event(), list[Any]()

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append("body")
            return {"type": "http.request", "body": b'{"kind": "scan"}', "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        return None

    headers = {"host": HOST, "x-memwal-token": TOKEN, "content-type": "application/json", "content-length": "16"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/query",
        "headers": raw,
        "query_string": b"",
        "http_version": "1.1",
    }

    async def leave() -> None:
        asked = asyncio.create_task(app(scope, receive, send))
        await asyncio.to_thread(held.begun.acquire, timeout=30)
        gone.set()
        assert await asyncio.to_thread(held.ended.acquire, timeout=30)
        await asked

    asyncio.run(leave())


def test_the_desk_answers_several_at_once(page: Page) -> None:
    async def both() -> list[int]:
        transport = httpx.ASGITransport(app=page._app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            asked = [
                client.post(
                    "/api/query", json={"kind": "scan"}, headers={"x-memwal-token": TOKEN, "x-memwal-client": str(n)}
                )
                for n in range(3)
            ]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(both()) == [200, 200, 200]


def test_limits_end_when_their_time_is_over() -> None:
    limits = Limits(SYSTEM_CLOCK, 60.0)
    limits.check()
    limits.give_up()
    with pytest.raises(Refusal, match="cancelled"):
        limits.check()
    assert rows(1).schema == SCHEMA
