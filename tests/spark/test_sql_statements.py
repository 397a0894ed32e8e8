"""SQL on a catalog of memwal tables: a test per statement."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import expr
from pyspark.sql.functions import udf as spark_function
from pyspark.sql.types import StructType

import lance_memwal as mw
import lance_memwal.spark as ms
from tests.kit.spark import entries_with_rows

pytestmark = pytest.mark.face
CATALOG = "io.memwal.spark.MemWalCatalog"


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    spark.conf.set("spark.sql.catalog.lake", CATALOG)
    spark.conf.set("spark.sql.catalog.lake.warehouse", warehouse)
    return warehouse


@pytest.fixture
def sql(spark: Any, lake: str) -> Any:
    return lambda text: [tuple(row) for row in spark.sql(text).collect()]


@pytest.fixture
def orders(sql: Any, request: pytest.FixtureRequest) -> Any:
    """A keyed table with three rows, of a name of its own."""
    name = f"lake.{request.node.name.partition('[')[0][:60]}"
    sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, item STRING, n INT) "
        "TBLPROPERTIES ('primary_key' = 'id', 'sharding' = 'bucket(id, 2)')"
    )
    sql(f"INSERT INTO {name} VALUES (1, 'ice', 1), (2, 'tea', 2), (3, 'salt', 3)")
    yield name
    sql(f"DROP TABLE IF EXISTS {name}")


def rows(sql: Any, table: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = sql(f"SELECT * FROM {table} ORDER BY 1")
    return found


def opened(lake: str, name: str) -> mw.Table:
    return mw.open_table(f"{lake}/{name.removeprefix('lake.').replace('.', '/')}.lance")


# ------------------------------------------------------------------------------------------------------------- tables


def test_create_table_makes_key_sharding_and_merge(sql: Any, lake: str) -> None:
    sql(
        "CREATE TABLE lake.made (id BIGINT NOT NULL, ts TIMESTAMP NOT NULL, price DECIMAL(10, 2), v ARRAY<FLOAT>) "
        "TBLPROPERTIES ('primary_key' = 'id', 'sharding' = 'bucket(id, 4)', 'merge' = 'last-write:ts')"
    )
    table = opened(lake, "made")
    assert (table.primary_key, str(table.sharding)) == (["id"], "bucket(id,4)")
    assert table.merge == mw.LastWrite("ts")
    with pytest.raises(Exception, match="already exists"):
        sql("CREATE TABLE lake.made (id BIGINT)")
    sql("CREATE TABLE IF NOT EXISTS lake.made (id BIGINT)")


def test_a_primary_key_and_buckets_may_be_given_in_sql(sql: Any, lake: str) -> None:
    sql("CREATE TABLE lake.sqlish (id BIGINT NOT NULL PRIMARY KEY, n INT) PARTITIONED BY (bucket(4, id))")
    table = opened(lake, "sqlish")
    assert (table.primary_key, str(table.sharding)) == (["id"], "bucket(id,4)")
    sql("CREATE TABLE lake.by_value (region STRING NOT NULL, id INT NOT NULL, PRIMARY KEY (region, id)) "
        "PARTITIONED BY (region)")  # fmt: skip
    by_value = opened(lake, "by_value")
    assert (by_value.primary_key, str(by_value.sharding)) == (["region", "id"], "identity(region)")


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("id BIGINT", "TBLPROPERTIES ('primray_key' = 'id')", "primray_key.*not known"),
        ("id BIGINT", "TBLPROPERTIES ('merge' = 'biggest')", "none of last-write"),
        ("id BIGINT", "TBLPROPERTIES ('sharding' = 'hash(id)')", "none of unsharded"),
        ("id BIGINT", "PARTITIONED BY (years(id))", "spread by one column"),
        ("id BIGINT, m INTERVAL YEAR", "", "cannot hold"),
        ("id BIGINT", "USING parquet", "memwal tables, not parquet"),
        ("", "USING parquet AS SELECT 1 AS id", "memwal tables, not parquet"),
        ("", "USING json AS SELECT 1 AS id", "memwal tables, not json"),
        ("id BIGINT DEFAULT 5", "", "does not support column default value"),
        ("id BIGINT, g BIGINT GENERATED ALWAYS AS (id + 1)", "", "does not support generated columns"),
        ("id BIGINT GENERATED ALWAYS AS IDENTITY", "", "does not support identity column"),
        ("id BIGINT, CHECK (id > 0)", "", "no other constraints"),
        ("id BIGINT UNIQUE", "", "no other constraints"),
        ("id BIGINT, s STRING COLLATE UTF8_LCASE", "", "column 's'.*collation"),
        ("id BIGINT, s ARRAY<STRING COLLATE UTF8_LCASE>", "", "column 's'.*collation"),
        ("id BIGINT, s STRUCT<x: STRING COLLATE UTF8_LCASE>", "", "column 's'.*collation"),
        ("id BIGINT, s STRING", "DEFAULT COLLATION UTF8_LCASE", "DEFAULT COLLATION"),
        ("", "AS SELECT 'x' COLLATE UTF8_LCASE AS s", "column 's'.*collation"),
        ("id BIGINT", "LOCATION '/tmp/elsewhere'", "LOCATION"),
        ("id BIGINT", "OPTIONS (inlineBytes '1')", "inlineBytes.*not known"),
        ("id BIGINT", "CLUSTER BY (id)", "spread by one column"),
        ("id BIGINT", "CLUSTERED BY (id) SORTED BY (id) INTO 4 BUCKETS", "spread by one column"),
        ("id BIGINT", "STORED AS PARQUET", "stored-as.*not known"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_words(sql: Any, columns: str, more: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as raised:
        sql(f"CREATE TABLE lake.refused {columns and f'({columns})'} {more}")
    assert "Traceback" not in str(raised.value)
    assert "refused" not in [name for _, name, _ in sql("SHOW TABLES IN lake")]


def test_more_clauses_that_a_warehouse_cannot_keep_are_refused(spark: Any, sql: Any) -> None:
    with pytest.raises(Exception, match="cannot keep EXTERNAL"):
        sql("CREATE EXTERNAL TABLE lake.refused (id BIGINT)")
    with pytest.raises(Exception, match="cannot keep LOCATION"):
        spark.range(1).write.format("memwal").option("path", "/tmp/elsewhere").saveAsTable("lake.refused")
    with pytest.raises(Exception, match="memwal tables, not json"):
        spark.range(1).write.format("json").saveAsTable("lake.refused")
    for clause, name in (
        ("COMMENT 'x'", "comment"),
        ("LOCATION '/tmp/x'", "location"),
        ("WITH DBPROPERTIES (a = 'b')", "a"),
    ):
        with pytest.raises(Exception, match=f"a namespace .* has no {name}"):
            sql(f"CREATE NAMESPACE lake.refused {clause}")
    assert ("refused",) not in sql("SHOW NAMESPACES IN lake")
    assert not spark.catalog.tableExists("lake.refused")


def test_comments_are_kept(spark: Any, sql: Any, lake: str) -> None:
    columns = "id INT NOT NULL PRIMARY KEY COMMENT 'the key', s STRUCT<x: INT COMMENT 'inside'> COMMENT 'a struct'"
    sql(f"CREATE TABLE lake.told ({columns}) COMMENT 'about orders'")
    sql("ALTER TABLE lake.told ADD COLUMN n INT COMMENT 'it''s new'")
    sql("INSERT INTO lake.told VALUES (1, named_struct('x', 2), 3)")
    table = opened(lake, "told")
    table.flush(force=True)
    table.compact()
    sql("INSERT INTO lake.told VALUES (2, NULL, 4)")
    sql("ALTER TABLE lake.told RENAME COLUMN n TO m")
    described = {row[0]: row[1:] for row in sql("DESCRIBE TABLE EXTENDED lake.told")}
    assert described["Comment"][0] == "about orders"
    assert [described[name][1] for name in ("id", "s", "m")] == ["the key", "a struct", "it's new"]
    assert "'inside'" in sql("SHOW CREATE TABLE lake.told")[0][0]
    sql("CREATE TABLE lake.told_too AS SELECT * FROM lake.told")
    assert spark.table("lake.told_too").schema["id"].metadata == {"comment": "the key"}
    assert rows(sql, "lake.told_too") == rows(sql, "lake.told") == [(1, (2,), 3), (2, None, 4)]
    assert table.verify().ok
    assert table.dataset.schema.field("s").metadata == {b"comment": b"a struct"}


def test_create_table_as_select(sql: Any, orders: str, lake: str) -> None:
    sql(f"CREATE TABLE lake.chosen TBLPROPERTIES ('primary_key' = 'id') AS SELECT id, item FROM {orders} WHERE n > 1")
    assert rows(sql, "lake.chosen") == [(2, "tea"), (3, "salt")]


KEYED = "TBLPROPERTIES ('primary_key' = 'id')"


@pytest.mark.parametrize(
    "replace",
    [
        "CREATE OR REPLACE TABLE {t} TBLPROPERTIES ('sharding' = 'bucket(id, 2)', 'primary_key' = 'id') AS {query}",
        "REPLACE TABLE {t} AS {query}",
        "saveAsTable",
        "createOrReplace",
        "INSERT OVERWRITE {t} {query}",
        "by path",
    ],
)
def test_replacing_statement_leaves_new_rows_or_old(spark: Any, sql: Any, orders: str, lake: str, replace: str) -> None:
    def run(query: str) -> None:
        frame = spark.sql(query) if " " not in replace or replace == "by path" else None
        if replace == "saveAsTable":
            frame.write.mode("overwrite").option("primaryKey", "id").saveAsTable(orders)
        elif replace == "createOrReplace":
            frame.writeTo(orders).option("sharding", "bucket(id,2)").createOrReplace()
        elif replace == "by path":
            frame.write.format("memwal").mode("overwrite").save(opened(lake, orders).uri)
        else:
            sql(replace.format(t=orders, query=query))

    before = rows(sql, orders)
    for wrong, message in (
        (f"SELECT id, item, cast(1 / (id - id) AS INT) AS n FROM {orders}", "DIVIDE_BY_ZERO"),
        (f"SELECT 1L AS id, item, n FROM {orders}", "repeat the key"),
    ):
        with pytest.raises(Exception, match=message):
            run(wrong)
        assert rows(sql, orders) == before
    spark.table(orders).createOrReplaceTempView("orders_view")
    run("SELECT id, upper(item) AS item, n + 1 AS n FROM orders_view WHERE id > 1")
    assert rows(sql, orders) == [(2, "TEA", 3), (3, "SALT", 4)]
    assert opened(lake, orders).primary_key == ["id"]


def test_a_definition_is_never_replaced_and_nothing_is_dropped(sql: Any, orders: str, lake: str) -> None:
    before = rows(sql, orders)
    for statement, message in (
        (
            f"REPLACE TABLE {orders} AS SELECT item FROM {orders}",
            "columns is id bigint, item string, n int, not item string",
        ),
        (
            f"REPLACE TABLE {orders} TBLPROPERTIES (primary_key = 'n') AS SELECT * FROM {orders}",
            "primary key is id, not n",
        ),
        (
            f"REPLACE TABLE {orders} TBLPROPERTIES (sharding = 'unsharded') AS SELECT * FROM {orders}",
            "sharding is bucket",
        ),
        (f"REPLACE TABLE {orders} TBLPROPERTIES (merge = 'first-row') AS SELECT * FROM {orders}", "merge is None"),
        (f"CREATE OR REPLACE TABLE {orders} (id BIGINT)", "columns is .*DROP TABLE first"),
        (
            f"CREATE OR REPLACE TABLE {orders} (id BIGINT, item STRING COMMENT 'x', n INT)",
            "the comment of item is None",
        ),
    ):
        with pytest.raises(Exception, match=message):
            sql(statement)
        assert rows(sql, orders) == before
    sql("CREATE TABLE lake.heap AS SELECT id FROM range(3)")
    with pytest.raises(Exception, match="without a primary key is not overwritten"):
        sql("CREATE OR REPLACE TABLE lake.heap AS SELECT id FROM lake.heap")
    assert sql("SELECT count(*) FROM lake.heap") == [(3,)]
    sql(f"CREATE OR REPLACE TABLE {orders} (id BIGINT, item STRING, n INT)")
    assert rows(sql, orders) == []
    sql(f"CREATE OR REPLACE TABLE lake.fresh {KEYED} AS SELECT 1L AS id")
    assert rows(sql, "lake.fresh") == [(1,)]
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sql("CREATE TABLE lake.failed AS SELECT 1 / (id - id) AS x FROM range(3)")
    assert "failed" not in [name for _, name, _ in sql("SHOW TABLES IN lake")]


def test_save_as_table_and_write_to(spark: Any, sql: Any, orders: str) -> None:
    frame = spark.createDataFrame([(3, "sea salt", 3), (4, "oil", 4)], "id long, item string, n int")
    frame.write.mode("append").saveAsTable(orders)
    frame.select("n", "id", "item").writeTo(orders).append()  # by name
    assert rows(sql, orders)[2:] == [(3, "sea salt", 3), (4, "oil", 4)]
    frame.write.saveAsTable("lake.saved")
    frame.writeTo("lake.written").tableProperty("primary_key", "id").create()
    frame.writeTo("lake.written").append()
    assert (len(rows(sql, "lake.saved")), len(rows(sql, "lake.written"))) == (2, 2)
    with pytest.raises(Exception, match="unknown option 'primary_key'"):  # it would make a table without a key
        frame.write.option("primary_key", "id").saveAsTable("lake.saved_2")
    assert not spark.catalog.tableExists("lake.saved_2")


def test_options_of_save_as_table_define_the_table(spark: Any, sql: Any, lake: str) -> None:
    frame = spark.sql("SELECT 1L AS id, 'eu' AS region, 1 AS at")
    defined = {"primaryKey": "region, id", "sharding": "bucket(id,2)", "merge": "last-write:at"}
    frame.write.format("memwal").options(**defined).saveAsTable("lake.defined")
    table = opened(lake, "defined")
    assert (table.primary_key, str(table.sharding)) == (["region", "id"], "bucket(id,2)")
    assert table.merge == mw.LastWrite("at")
    frame.write.format("memwal").mode("append").options(**defined).saveAsTable("lake.defined")
    for other in ({"primaryKey": "id"}, {"primaryKey": "id,region"}, {"sharding": "bucket(id,4)"}, {"merge": "none"}):
        for write in (
            frame.write.mode("append").options(**other).saveAsTable,
            frame.writeTo("lake.defined").options(**other).append,
        ):
            with pytest.raises(Exception, match="and the table has"):
                write(*(["lake.defined"] if "save" in write.__name__ else []))
        with pytest.raises(Exception, match="and the table has"):
            frame.write.format("memwal_py").mode("append").options(**other).save(table.uri)
    assert sql("SELECT count(*) FROM lake.defined") == [(1,)]


def test_show_describe_and_properties(sql: Any, orders: str, lake: str) -> None:
    name = orders.removeprefix("lake.")
    assert name in [found for _, found, _ in sql("SHOW TABLES IN lake")]
    described = {row[0]: row[1] for row in sql(f"DESCRIBE TABLE EXTENDED {orders}")}
    assert (described["id"], described["Provider"]) == ("bigint", "memwal")
    assert described["Location"] == f"{lake}/{name}.lance"
    properties = dict(sql(f"SHOW TBLPROPERTIES {orders}"))
    assert properties == {"primary_key": "id", "sharding": "bucket(id,2)", "merge": "none"}


def test_history_and_shards_are_tables(sql: Any, orders: str) -> None:
    sql(f"ALTER TABLE {orders} ADD COLUMN more DOUBLE")
    history = sql(f"SELECT version, operation, timestamp <= now() FROM {orders}.history")
    assert [version for version, _, _ in history] == [3, 2, 1]
    assert {past for _, _, past in history} == {True}
    assert sql(f"SELECT count(*), min(log_entries) > 0 FROM {orders}.shards") == [(2, True)]


def test_drop_table_and_create_it_again(sql: Any, orders: str) -> None:
    for number in range(2):
        sql(f"DROP TABLE {orders}")
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            sql(f"SELECT * FROM {orders}")
        sql(f"CREATE TABLE {orders} (id BIGINT NOT NULL PRIMARY KEY, item STRING, n INT)")
        sql(f"INSERT INTO {orders} VALUES ({number}, 'new', 1)")
        assert rows(sql, orders) == [(number, "new", 1)]


def test_namespaces(sql: Any) -> None:
    sql("CREATE NAMESPACE lake.sales")
    sql("CREATE TABLE lake.sales.deep (id BIGINT)")
    assert ("sales",) in sql("SHOW NAMESPACES IN lake")
    assert sql("SHOW TABLES IN lake.sales") == [("sales", "deep", False)]
    with pytest.raises(Exception, match=r"(?i)not.empty"):
        sql("DROP NAMESPACE lake.sales")
    sql("DROP NAMESPACE lake.sales CASCADE")
    assert ("sales",) not in sql("SHOW NAMESPACES IN lake")
    with pytest.raises(Exception, match="SCHEMA_NOT_FOUND"):
        sql("CREATE TABLE lake.nowhere.t (id BIGINT)")


# --------------------------------------------------------------------------------------------------------------- rows


def test_insert_into_replaces_rows_of_a_key(sql: Any, orders: str) -> None:
    sql(f"INSERT INTO {orders} VALUES (1, 'iced tea', 9)")
    sql(f"INSERT INTO {orders} (n, id) VALUES (4, 4)")
    assert rows(sql, orders) == [(1, "iced tea", 9), (2, "tea", 2), (3, "salt", 3), (4, None, 4)]


def test_insert_overwrite_replaces_all_rows_under_one_mark(sql: Any, orders: str, lake: str) -> None:
    before = entries_with_rows(opened(lake, orders))
    sql(f"INSERT OVERWRITE {orders} VALUES (2, 'green tea', 2), (5, 'oil', 5)")
    assert rows(sql, orders) == [(2, "green tea", 2), (5, "oil", 5)]
    assert entries_with_rows(opened(lake, orders)) == before + 2  # one per shard, rows and tombstones together
    sql(f"INSERT OVERWRITE {orders} SELECT * FROM {orders} WHERE id = 5")
    assert rows(sql, orders) == [(5, "oil", 5)]
    with pytest.raises(Exception, match="repeat the key"):
        sql(f"INSERT OVERWRITE {orders} VALUES (1, 'a', 1), (1, 'b', 2)")
    assert rows(sql, orders) == [(5, "oil", 5)]


def test_what_cannot_be_overwritten_or_changed_is_refused(sql: Any) -> None:
    sql("CREATE TABLE lake.plain (id BIGINT, n INT)")
    sql("INSERT INTO lake.plain VALUES (1, 1)")
    with pytest.raises(Exception, match="without a primary key is not overwritten"):
        sql("INSERT OVERWRITE lake.plain VALUES (2, 2)")
    for text in ("DELETE FROM lake.plain WHERE id = 1", "UPDATE lake.plain SET n = 2"):
        with pytest.raises(Exception, match="no primary key"):
            sql(text)
    assert rows(sql, "lake.plain") == [(1, 1)]
    sql("CREATE TABLE lake.firsts (id BIGINT NOT NULL PRIMARY KEY, n INT) TBLPROPERTIES ('merge' = 'first-row')")
    sql("INSERT INTO lake.firsts VALUES (1, 1), (2, 2)")
    with pytest.raises(Exception, match="first row of a key stays"):
        sql("UPDATE lake.firsts SET n = 2")
    with pytest.raises(Exception, match="decides which row of a key wins"):
        sql("INSERT OVERWRITE lake.firsts VALUES (1, 2)")
    sql("DELETE FROM lake.firsts WHERE id = 1")
    assert rows(sql, "lake.firsts") == [(2, 2)]


def test_truncate_and_delete_of_all_rows(sql: Any, orders: str) -> None:
    sql(f"TRUNCATE TABLE {orders}")
    assert rows(sql, orders) == []
    sql(f"INSERT INTO {orders} VALUES (7, 'x', 7)")
    sql(f"DELETE FROM {orders}")
    assert sql(f"SELECT count(*) FROM {orders}") == [(0,)]


def test_delete(sql: Any, orders: str) -> None:
    sql(f"DELETE FROM {orders} WHERE n >= 2 AND item LIKE 's%'")
    assert rows(sql, orders) == [(1, "ice", 1), (2, "tea", 2)]
    sql(f"DELETE FROM {orders} WHERE id IN (SELECT max(id) FROM {orders})")
    assert rows(sql, orders) == [(1, "ice", 1)]


def test_update(sql: Any, orders: str) -> None:
    sql(f"UPDATE {orders} SET item = upper(item), n = n * 10 WHERE id < 3")
    assert rows(sql, orders) == [(1, "ICE", 10), (2, "TEA", 20), (3, "salt", 3)]


def test_an_update_refuses_to_change_a_key(sql: Any, orders: str) -> None:
    before = rows(sql, orders)
    for change in ("id = 2 WHERE id = 1", "id = id + 1", "item = 'x', id = id + n - 1", "id = 9 WHERE n = 3"):
        with pytest.raises(Exception, match=r"primary key \(id\) .*another value.*nothing was written"):
            sql(f"UPDATE {orders} SET {change}")
        assert rows(sql, orders) == before
    sql(f"UPDATE {orders} SET id = id, n = n + 1 WHERE id = 1")
    sql(f"UPDATE {orders} SET id = 2 WHERE item = 'tea'")
    assert rows(sql, orders) == [(1, "ice", 2), *before[1:]]


KEYS = {
    "INT": ("1", "2"),
    "STRING": ("'a'", "'b'"),
    "BINARY": ("X'00'", "X'01'"),
    "DECIMAL(10, 2)": ("1.10", "1.20"),
    "DATE": ("DATE'2024-01-01'", "DATE'2024-01-02'"),
    "TIMESTAMP": ("TIMESTAMP'2024-01-01 00:00:00'", "TIMESTAMP'2024-01-01 00:00:01'"),
    "BOOLEAN": ("false", "true"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_stay_as_they_are(sql: Any, kind: str) -> None:
    one, other = KEYS[kind]
    table = "lake." + "".join(filter(str.isalnum, f"keyed_{kind}"))
    sql(f"CREATE TABLE {table} (a INT NOT NULL, k {kind} NOT NULL, n INT, PRIMARY KEY (a, k))")
    sql(f"INSERT INTO {table} VALUES (1, {one}, 1), (1, {other}, 2)")
    before = rows(sql, table)
    source = f"(SELECT 1 AS a, {one} AS k) s ON t.a = s.a AND t.k = s.k"
    for statement in (
        f"UPDATE {table} SET k = {other} WHERE n = 1",
        f"UPDATE {table} SET a = 2 WHERE n = 1",
        f"MERGE INTO {table} t USING {source} WHEN MATCHED THEN UPDATE SET k = {other}",
    ):
        with pytest.raises(Exception, match=r"primary key \(a, k\) .*another value"):
            sql(statement)
        assert rows(sql, table) == before
    sql(f"UPDATE {table} SET a = 1, k = {one}, n = 5 WHERE n = 1")
    sql(f"MERGE INTO {table} t USING {source} WHEN MATCHED THEN UPDATE SET k = s.k, n = t.n + 1")
    assert sorted(row[0] for row in sql(f"SELECT n FROM {table}")) == [2, 6]


def test_a_row_that_changes_its_shard_is_there_once(sql: Any, lake: str) -> None:
    columns = ms.arrow_schema_for(StructType.fromDDL("id INT NOT NULL, region STRING NOT NULL, n INT"))
    path, sharding = f"{lake}/moving.lance", mw.Identity("region")
    mw.create_table(path, columns, primary_key="id", sharding=sharding, allow_keys_across_shards=True)
    sql("INSERT INTO lake.moving VALUES (1, 'eu', 1), (2, 'us', 2)")
    sql("UPDATE lake.moving SET region = 'us', n = 10 WHERE id = 1")
    assert rows(sql, "lake.moving") == [(1, "us", 10), (2, "us", 2)]


def test_merge_into(sql: Any, orders: str) -> None:
    sql(
        f"MERGE INTO {orders} t "
        "USING (SELECT * FROM VALUES (1, 'gone', 0), (2, 'tea', 20), (8, 'new', 8) v(id, item, n)) s "
        "ON t.id = s.id WHEN MATCHED AND s.item = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET n = s.n "
        "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN UPDATE SET item = 'unknown'"
    )
    assert rows(sql, orders) == [(2, "tea", 20), (3, "unknown", 3), (8, "new", 8)]
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        sql(
            f"MERGE INTO {orders} t USING (SELECT * FROM VALUES (2), (2) v(id)) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = 0"
        )


@pytest.mark.parametrize("on_conflict", ["error", "overwrite"])
def test_merge_changes_no_key_and_inserts_no_existing_one(spark: Any, sql: Any, orders: str, on_conflict: str) -> None:
    before = rows(sql, orders)

    def merge(source: str, on: str, clauses: str) -> None:
        sql(f"MERGE INTO {orders} t USING (SELECT * FROM VALUES {source} s(id, item, n)) s ON {on} {clauses}")

    insert = "WHEN NOT MATCHED THEN INSERT *"
    spark.conf.set("spark.memwal.onConflict", on_conflict)
    try:
        for source, on, clauses in (
            ("(1, 'x', 0)", "t.id = s.id", "WHEN MATCHED THEN UPDATE SET id = 2"),
            ("(2, 'ice', 0)", "t.item = s.item", "WHEN MATCHED THEN UPDATE SET *"),
            ("(9, 'tea', 0)", "t.item = s.item", f"WHEN MATCHED THEN UPDATE SET * {insert}"),
            ("(1, 'x', 0)", "t.id = s.id", "WHEN MATCHED AND t.n > 5 THEN DELETE WHEN NOT MATCHED BY SOURCE THEN "
             "UPDATE SET id = t.id + 10"),
        ):  # fmt: skip
            with pytest.raises(Exception, match=r"primary key \(id\) .*another value"):
                merge(source, on, clauses)
            assert rows(sql, orders) == before
        for source, on, clauses in (
            ("(2, 'new', 0)", "t.item = s.item", insert),
            ("(2, 'ice', 0), (7, 'new too', 0)", "false", insert),
            ("(3, 'new', 0), (2, 'tea', 5)", "t.item = s.item", f"WHEN MATCHED THEN UPDATE SET n = s.n {insert}"),
        ):
            with pytest.raises(Exception, match=r"inserts.*key.*exist.*'id': [23].*nothing was written"):
                merge(source, on, clauses)
            assert rows(sql, orders) == before
        insert_all = "WHEN NOT MATCHED AND s.n > 5 THEN INSERT (id) VALUES (s.id) WHEN NOT MATCHED THEN INSERT *"
        for source in ("(3, 'new', 9)", "(3, 'new', 1)"):
            with pytest.raises(Exception, match=r"inserts.*key.*exist.*'id': 3"):
                merge(source, "t.item = s.item", insert_all)
        source_frame = spark.sql("SELECT 1L AS id, 'new' AS item, 0 AS n").alias("s")
        of_frame = source_frame.mergeInto(orders, expr(f"{orders}.item = s.item")).whenNotMatched().insertAll()
        with pytest.raises(Exception, match=r"inserts.*key.*exist.*'id': 1"):
            of_frame.merge()
        assert rows(sql, orders) == before
        freed = "(2, 'new', 0), (3, 'tea', 0), (7, 'more', 7)"  # row 2 is deleted, and its key inserted
        merge(freed, "t.item = s.item AND t.id = 2 AND s.id = 3", f"WHEN MATCHED THEN DELETE {insert}")
    finally:
        spark.conf.unset("spark.memwal.onConflict")
    assert rows(sql, orders) == [(1, "ice", 1), (2, "new", 0), (3, "salt", 3), (7, "more", 7)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {t} SET n = meanwhile(n) + 1 WHERE id <= 2",
        "DELETE FROM {t} WHERE meanwhile(n) > 0",
        "MERGE INTO {t} t USING (SELECT 2L id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = meanwhile(n) + 1",
    ],
    ids=["update", "delete", "merge"],
)
def test_keys_that_others_change_while_a_statement_runs_are_a_conflict(
    spark: Any, sql: Any, orders: str, lake: str, tmp_path: Path, statement: str
) -> None:
    uri, once = opened(lake, orders).uri, tmp_path / "once"

    def meanwhile(n: int) -> int:
        try:
            once.mkdir()
        except FileExistsError:
            return n
        with mw.open_table(uri).writer() as writer:
            writer.put([{"id": 2, "item": "theirs", "n": 20}])
        return n

    spark.udf.register("meanwhile", spark_function(meanwhile, "int", useArrow=False))
    with pytest.raises(Exception, match=r"ChangedKeysError.*run it again"):
        sql(statement.format(t=orders))
    assert rows(sql, orders) == [(1, "ice", 1), (2, "theirs", 20), (3, "salt", 3)], "nothing was written to any shard"
    once.rmdir()
    spark.conf.set("spark.memwal.onConflict", "overwrite")
    try:
        sql(statement.format(t=orders))
    finally:
        spark.conf.unset("spark.memwal.onConflict")
    assert (2, "theirs", 20) not in rows(sql, orders)
    sql(statement.format(t=orders))


def test_changes_of_a_table_with_a_sequence_keep_it(sql: Any) -> None:
    sql("CREATE TABLE lake.seq (id BIGINT NOT NULL PRIMARY KEY, ts INT NOT NULL, n INT) "
        "TBLPROPERTIES ('merge' = 'last-write:ts')")  # fmt: skip
    sql("INSERT INTO lake.seq VALUES (1, 10, 1), (2, 10, 2), (3, 10, 3)")
    sql("UPDATE lake.seq SET n = 5 WHERE id = 1")
    sql("DELETE FROM lake.seq WHERE id = 2")
    sql("INSERT INTO lake.seq VALUES (1, 9, 0), (2, 9, 0), (3, 11, 4)")  # two are late
    assert rows(sql, "lake.seq") == [(1, 10, 5), (3, 11, 4)]


def test_many_changed_rows_come_in_chunks(spark: Any, sql: Any, lake: str) -> None:
    frame = spark.range(50_000).selectExpr("id", "cast(id % 10 as int) as n")
    frame.writeTo("lake.many").tableProperty("primary_key", "id").tableProperty("sharding", "bucket(id, 2)").create()
    sql("UPDATE lake.many SET n = 100")
    assert sql("SELECT count(*), sum(n) FROM lake.many") == [(50_000, 5_000_000)]


# ------------------------------------------------------------------------------------------------------------ columns


def test_alter_table_adds_renames_and_drops_columns(spark: Any, sql: Any, orders: str) -> None:
    sql(f"ALTER TABLE {orders} ADD COLUMNS (price DOUBLE, tags ARRAY<STRING>)")
    sql(f"ALTER TABLE {orders} RENAME COLUMN n TO amount")
    sql(f"UPDATE {orders} SET price = amount * 1.5, tags = array(item) WHERE id = 2")
    assert rows(sql, orders)[1] == (2, "tea", 2, 3.0, ["tea"])
    sql(f"ALTER TABLE {orders} DROP COLUMN item")
    assert rows(sql, orders)[:2] == [(1, 1, None, None), (2, 2, 3.0, ["tea"])]
    for text, message in (
        ("DROP COLUMN id", "part of the key"),
        ("ADD COLUMN first INT FIRST", "the last one"),
        ("ADD COLUMN more INT DEFAULT 5", "no default value"),
        ("ADD COLUMN more STRING COLLATE UTF8_LCASE", "cannot keep a collation"),
        ("ADD COLUMN more ARRAY<STRING COLLATE UTF8_LCASE>", "cannot keep a collation"),
        ("ALTER COLUMN amount TYPE BIGINT", "nothing else"),
        ("ALTER COLUMN amount COMMENT 'x'", "nothing else"),
        ("ALTER COLUMN amount SET DEFAULT 3", "nothing else"),
        ("ALTER COLUMN amount FIRST", "nothing else"),
        ("ALTER COLUMN id DROP NOT NULL", "nothing else"),
        ("SET TBLPROPERTIES (x = 'y')", "nothing else"),
        ("UNSET TBLPROPERTIES (merge)", "nothing else"),
        ("SET LOCATION '/tmp/elsewhere'", "nothing else"),
        ("ADD CONSTRAINT c CHECK (id > 0)", "nothing else"),
        ("CLUSTER BY (amount)", "nothing else"),
        ("DEFAULT COLLATION UTF8_LCASE", "nothing else"),
    ):
        with pytest.raises(Exception, match=message):
            sql(f"ALTER TABLE {orders} {text}")
    assert spark.table(orders).columns == ["id", "amount", "price", "tags"]


def test_schema_evolution_of_insert_and_merge(sql: Any, orders: str) -> None:
    sql(f"INSERT WITH SCHEMA EVOLUTION INTO {orders} SELECT 4L AS id, 'oil' AS item, 4 AS n, 2.5D AS price")
    sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {orders} t USING (SELECT 1L id, 'ice' item, 1 n, 1.0D price, 'x' note) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(sql, orders)[::3] == [(1, "ice", 1, 1.0, "x"), (4, "oil", 4, 2.5, None)]


def test_columns_of_the_change_feed_are_not_added(sql: Any, orders: str) -> None:
    for statement in (
        f"INSERT WITH SCHEMA EVOLUTION INTO {orders} SELECT 4L AS id, 'oil' AS item, 4 AS n, 7L AS _position",
        f"MERGE WITH SCHEMA EVOLUTION INTO {orders} t USING (SELECT 1L id, 'ice' item, 1 n, 'x' _shard) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET *",
        f"ALTER TABLE {orders} ADD COLUMN _Commit_Version BIGINT",
    ):
        with pytest.raises(Exception, match="belongs to the change feed"):
            sql(statement)
    assert rows(sql, orders) == [(1, "ice", 1), (2, "tea", 2), (3, "salt", 3)]


# --------------------------------------------------------------------------------------------------------------- time


def test_version_and_timestamp_as_of(spark: Any, sql: Any, orders: str, lake: str) -> None:
    table = opened(lake, orders)
    snapshot = str(table.snapshot())
    table.checkpoints.create("before")
    sql(f"DELETE FROM {orders} WHERE id < 3")
    for version in (snapshot, "before"):
        assert sql(f"SELECT count(*) FROM {orders} VERSION AS OF '{version}' WHERE n > 1") == [(2,)]
        assert len(sql(f"SELECT * FROM {orders} VERSION AS OF '{version}'")) == 3
    assert sql(f"SELECT * FROM {orders} VERSION AS OF 1") == []  # of the base table, which has no rows yet
    assert sql(f"SELECT count(*) FROM {orders} TIMESTAMP AS OF current_timestamp()") == [(1,)]
    assert len(rows(sql, orders)) == 1
    with pytest.raises(Exception, match="no checkpoint 'never'"):
        sql(f"SELECT * FROM {orders} VERSION AS OF 'never'")


def test_changes_between_versions_and_times(spark: Any, sql: Any, orders: str, lake: str) -> None:
    sql(f"CALL lake.checkpoint(table => '{orders.removeprefix('lake.')}', name => 'before')")
    sql(f"UPDATE {orders} SET n = 20 WHERE id = 2")
    sql(f"UPDATE {orders} SET n = 21 WHERE id = 2")
    sql(f"DELETE FROM {orders} WHERE id = 1")
    ((after,),) = sql(f"SELECT snapshot FROM {orders}.now")
    sql(f"INSERT INTO {orders} VALUES (4, 'oil', 4)")
    between = f"{orders} CHANGES FROM VERSION 'before' TO VERSION '{after}'"
    assert sql(f"SELECT _change_type, id, n FROM {between} ORDER BY id, _commit_version, _change_type DESC") == [
        ("delete", 1, 1),
        ("update_preimage", 2, 2),
        ("update_postimage", 2, 20),
        ("update_preimage", 2, 20),
        ("update_postimage", 2, 21),
    ]
    net = f"{between} WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    assert sql(f"SELECT _change_type, id, n FROM {net} ORDER BY id, n") == [
        ("delete", 1, 1),
        ("update_preimage", 2, 2),
        ("update_postimage", 2, 21),
    ]
    reader = spark.read.option("startingVersion", after)
    assert [(row["_change_type"], row["id"]) for row in reader.changes(orders).collect()] == [("insert", 4)]
    ((from_then, last),) = sql(
        f"SELECT min(_commit_timestamp), max(_commit_timestamp) FROM {orders} CHANGES FROM VERSION '{after}'"
    )
    assert from_then == last
    exactly = f"FROM TIMESTAMP '{last}' TO TIMESTAMP '{last}'"
    assert sql(f"SELECT id FROM {orders} CHANGES {exactly}") == [(4,)]
    assert sql(f"SELECT id FROM {orders} CHANGES FROM TIMESTAMP '{last}' EXCLUSIVE") == []
    with pytest.raises(Exception, match="the name of a checkpoint"):
        sql(f"SELECT * FROM {orders} CHANGES FROM VERSION 'never'")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM lake.nowhere CHANGES FROM VERSION 'before'")


# --------------------------------------------------------------------------------------------------------- procedures


def test_procedures(sql: Any, orders: str, lake: str) -> None:
    name = orders.removeprefix("lake.")
    table = opened(lake, name)
    table.flush(force=True)
    compacted = dict(sql(f"CALL lake.compact('{name}')"))
    assert (compacted["rows_written"], table.dataset.count_rows()) == ("3", 3)
    assert sql(f"CALL lake.verify(table => '{name}')") == []
    assert dict(sql(f"CALL lake.gc('{name}')"))["dry_run"] == "False"
    assert "versions_removed" in dict(sql(f"CALL lake.maintain('{name}')"))
    sql(f"INSERT INTO {orders} VALUES (9, 'x', 9)")
    (flushed,) = sql(f"CALL lake.flush('{name}')")  # the shard of the row, or why it was left alone
    assert flushed[1] == 1 or flushed[2] is not None
    with pytest.raises(Exception, match="there is no table nowhere"):
        sql("CALL lake.flush('nowhere')")
    with pytest.raises(Exception, match="FAILED_TO_LOAD_ROUTINE"):
        sql("CALL lake.defragment('x')")
    with pytest.raises(Exception, match="REQUIRED_PARAMETER_NOT_FOUND"):
        sql(f"CALL lake.checkpoint('{name}')")


# ------------------------------------------------------------------------------------------- tables of Spark's catalog


def test_a_table_of_sparks_own_catalog(spark: Any, sql: Any, orders: str, lake: str) -> None:
    uri = opened(lake, orders).uri
    sql(f"CREATE TABLE linked USING memwal OPTIONS (path '{uri}')")
    try:
        sql("INSERT INTO linked VALUES (4, 'oil', 4)")
        sql("UPDATE linked SET n = 0 WHERE id = 4")
        sql("DELETE FROM linked WHERE id < 3")
        assert rows(sql, "linked") == rows(sql, orders) == [(3, "salt", 3), (4, "oil", 0)]
    finally:
        sql("DROP TABLE linked")
