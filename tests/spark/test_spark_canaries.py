"""Credentials that are given to Spark are in none of its plans, pages, logs, statements and errors."""

import io
import json
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.spark.session import settings_that_hide
from tests.kit.canaries import CANARY, CREDENTIALS, refuse_canaries
from tests.kit.spark import keyed

OPTIONS = {f"storage.{name}": value for name, value in CREDENTIALS.items()}
HIDDEN = "*********(redacted)"


def printed(call: Callable[[], object]) -> str:
    with redirect_stdout(io.StringIO()) as told:
        call()
    return told.getvalue()


def plans_of(frame: Any) -> str:
    """All that Spark says of how it runs a query."""
    run = frame._jdf.queryExecution()
    return printed(lambda: frame.explain(True)) + str(run) + str(run.logical()) + str(run.executedPlan()) + repr(frame)


def failure(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return "".join(traceback.format_exception(caught.value))


def without_canary(*texts: str) -> None:
    for text in texts:
        refuse_canaries([text])


@pytest.fixture
def pages(spark: Any) -> Callable[[str], str]:
    """What the web pages of the session answer."""
    context = spark.sparkContext

    def read(path: str) -> str:
        place = f"{context.uiWebUrl}{path.format(application=context.applicationId)}"
        with urllib.request.urlopen(place, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    return read


@pytest.fixture
def events(spark: Any, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """What Spark writes to its event log meanwhile: its pages about queries are made of the same."""
    context, place = spark.sparkContext, tmp_path / "events"
    jvm, own = context._jvm, context._jsc.sc()
    place.mkdir()
    settings = own.conf().clone().set("spark.eventLog.compress", "false")
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        context.applicationId, nothing, jvm.java.net.URI(place.as_uri()), settings
    )
    log.start()
    own.addSparkListener(log)

    def read() -> str:
        own.listenerBus().waitUntilEmpty()
        own.removeSparkListener(log)
        log.stop()
        return "".join(file.read_text() for file in place.rglob("*") if file.is_file())

    yield read
    own.removeSparkListener(log)


def test_reads_writes_and_streams_show_no_credential(
    spark: Any, uri: str, tmp_path: Path, pages: Callable[[str], str], events: Callable[[], str]
) -> None:
    copy, checkpoint = str(tmp_path / "copy"), tmp_path / "checkpoint"
    keyed(uri, 1)
    keyed(copy, 1)
    rows = spark.createDataFrame([(1, "a", 1)], "id long, value string, n int")
    rows.write.format("memwal").options(**OPTIONS).mode("append").save(uri)
    read = spark.read.format("memwal").options(**OPTIONS).load(uri).where("n = 1")
    assert len(read.collect()) == 1
    alone = spark.read.format("memwal_py").options(**OPTIONS).load(uri)
    feed = spark.readStream.format("memwal_changes").options(**OPTIONS).load(uri).select("id", "value", "n")
    query = feed.writeStream.format("memwal").options(checkpointLocation=str(checkpoint), **OPTIONS)
    query = query.trigger(availableNow=True).start(copy)
    assert query.awaitTermination(120)
    without_canary(plans_of(read), plans_of(alone), printed(lambda: query.explain(True)), str(query.recentProgress))
    without_canary(
        *(
            file.read_text(errors="replace")
            for file in checkpoint.rglob("[!.]*")
            if file.is_file() and file.stat().st_size > 20
        )
    )
    wrong = spark.read.format("memwal").options(**OPTIONS).option("filter", "no such")
    nowhere = spark.read.format("memwal").options(**OPTIONS).option("nosuch", CANARY[:3])
    without_canary(failure(lambda: wrong.load(uri).collect()), failure(lambda: nowhere.load(uri).collect()))
    without_canary(failure(lambda: rows.write.format("memwal").options(**OPTIONS).mode("append").save(f"{uri}-none")))
    told = events()
    assert "SparkListenerSQLExecutionStart" in told
    assert "SparkListenerJobStart" in told
    without_canary(told, pages("/StreamingQuery/"))


def test_statements_and_pages_about_settings_show_no_credential(spark: Any, pages: Callable[[str], str]) -> None:
    """The catalog `canaries` is a setting of this session (see the fixture `spark`)."""
    shown = {row.key: row.value for row in spark.sql("SET").collect()}
    names = [name for name in shown if name.startswith("spark.sql.catalog.canaries.storage.")]
    assert [shown[name] for name in names] == [HIDDEN] * len(CREDENTIALS)
    settings = json.loads(pages("/api/v1/applications/{application}/environment"))["sparkProperties"]
    assert [value for name, value in settings if name in names] == [HIDDEN] * len(CREDENTIALS)
    without_canary(str(shown), str(settings), pages("/environment/"))


@pytest.mark.face
def test_a_table_of_sparks_own_catalog_shows_no_credential(spark: Any, uri: str) -> None:
    keyed(uri, 1)
    given = ", ".join(f"'{name}' '{value}'" for name, value in OPTIONS.items())
    spark.sql(f"CREATE TABLE canary_by_place USING memwal OPTIONS (path '{uri}', {given})")
    try:
        for statement in (
            "SHOW CREATE TABLE canary_by_place",
            "DESCRIBE EXTENDED canary_by_place",
            "EXPLAIN EXTENDED SELECT * FROM canary_by_place WHERE n = 1",
            "EXPLAIN EXTENDED INSERT INTO canary_by_place VALUES (2L, 'b', 2)",
        ):
            without_canary(str(spark.sql(statement).collect()))
        hint = f"WITH (`storage.azure_storage_sas_key` = '{CANARY}-hint')"
        told = str(spark.sql(f"EXPLAIN EXTENDED SELECT * FROM canary_by_place {hint}").collect())
        assert f"storage.azure_storage_sas_key={HIDDEN}" in told
        without_canary(told)
    finally:
        spark.sql("DROP TABLE canary_by_place")


@pytest.mark.face
def test_the_face_shows_no_credential_of_its_catalog(spark: Any) -> None:
    spark.sql("CREATE TABLE canaries.orders (id BIGINT NOT NULL, value STRING, PRIMARY KEY (id))")
    merge = "MERGE INTO canaries.orders t USING (SELECT 1L AS id, 'b' AS value) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    for statement in (
        "SHOW CREATE TABLE canaries.orders",
        "DESCRIBE EXTENDED canaries.orders",
        "SHOW TBLPROPERTIES canaries.orders",
        "EXPLAIN EXTENDED SELECT * FROM canaries.orders WHERE id = 1",
        "EXPLAIN EXTENDED INSERT INTO canaries.orders VALUES (2L, 'b')",
        "EXPLAIN EXTENDED DELETE FROM canaries.orders WHERE id = 1",
        f"EXPLAIN EXTENDED {merge}",
        "CALL canaries.compact('orders')",
    ):
        without_canary(str(spark.sql(statement).collect()))
    without_canary(
        failure(lambda: spark.sql("CALL canaries.compact('none')").collect()),
        failure(lambda: spark.sql("SELECT * FROM canaries.none").collect()),
        failure(lambda: spark.sql("CREATE TABLE canaries.bad (id BIGINT) TBLPROPERTIES ('no.such' = 'x')")),
    )
    spark.sql("DROP TABLE canaries.orders")


@pytest.mark.parametrize("own", [{}, {"spark.redaction.regex": "(?i)customer|^x"}])
def test_what_a_user_hides_is_hidden_besides_storage_options(spark: Any, own: dict[str, str]) -> None:
    (hidden,) = settings_that_hide(own).values()
    pattern = spark._jvm.java.util.regex.Pattern.compile(hidden)
    names = [
        "spark.sql.catalog.lake.storage.azure_storage_account_key",
        "storage.aws_access_key_id",
        "option.storage.key",
    ]
    names.append("spark.my.Customer" if own else "spark.my.Password")
    assert [name for name in names if not pattern.matcher(name).find()] == []
    assert not pattern.matcher("spark.sql.shuffle.partitions").find()


def test_a_session_with_a_regex_of_its_own_writes_no_credential_to_its_event_log(tmp_path: Path) -> None:
    script = (
        "import sys, lance_memwal.spark as ms\n"
        "spark = ms.session('local[1]', **{'spark.redaction.regex': '(?i)secret|customer', 'spark.eventLog.enabled': True,\n"
        "    'spark.eventLog.compress': False, 'spark.eventLog.dir': sys.argv[1], 'spark.my.customer': sys.argv[2],\n"
        "    'spark.sql.catalog.lake.storage.azure_storage_account_key': sys.argv[2]})\n"
        "spark.range(1).count()\n"
        "spark.stop()\n"
    )
    asked = [sys.executable, "-c", script, tmp_path.as_uri(), CANARY]
    child = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr[-2_000:]
    logged = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert "azure_storage_account_key" in logged
    without_canary(logged)
