"""Every SQL statement that the JVM face answers, the same on every deployment of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Outcome = Any
CATALOG = "io.memwal.spark.MemWalCatalog"

EXPECTED_SQL: dict[str, Outcome] = {
    "CREATE TABLE": [["id", "bucket(id,2)", "last-write:at"]],
    "SHOW TABLES": [["t"]],
    "INSERT INTO": [[1, "ice", 1], [2, "tea", 2], [3, "salt", 3]],
    "CREATE TABLE AS SELECT": [[2, "tea", 2], [3, "salt", 3]],
    "saveAsTable": [[3]],
    "writeTo": [[2, "tea", 2], [3, "salt", 3], [9, "new", 9]],
    "UPDATE": [[1, "ICE", 1], [2, "tea", 2], [3, "salt", 3]],
    "DELETE": [[1, "ICE", 1], [3, "salt", 3]],
    "MERGE INTO": [[1, "ICE", 1], [7, "oil", 7]],
    "count": [[1]],
    "INSERT OVERWRITE": [[7, "oil", 7]],
    "ALTER TABLE ADD COLUMN": [[1, None], [7, None]],
    "ALTER TABLE RENAME COLUMN": ["id", "name", "n", "price"],
    "ALTER TABLE DROP COLUMN": ["id", "n", "price"],
    "mergeSchema": ["id", "n", "price", "note"],
    "history": [[True, True]],
    "VERSION AS OF": [[1], [2], [3]],
    "TIMESTAMP AS OF": [[True]],
    "CHANGES": [["delete", 2], ["delete", 3], ["insert", 7], ["update_postimage", 1], ["update_preimage", 1]],
    "memwal_search": [[7]],
    "CALL": [["checkpoint_drop"], ["compact"], ["flush"], ["gc"], ["maintain"], ["verify"]],
    "TRUNCATE": [],
    "DROP TABLE": [["c"], ["s"], ["t"]],
}


class Statements:
    """Runs them in order in one session; each answers with rows."""

    def __init__(self, spark: Any, warehouse: str) -> None:
        self._spark = spark
        spark.conf.set("spark.sql.catalog.store", CATALOG)
        spark.conf.set("spark.sql.catalog.store.warehouse", warehouse)
        self._warehouse = warehouse

    def outcomes(self) -> dict[str, Outcome]:
        """What every statement gave; the words of an error if one did."""
        steps: dict[str, Callable[[], Outcome]] = {
            "CREATE TABLE": self._create,
            "SHOW TABLES": lambda: self._rows("SHOW TABLES IN store", "tableName"),
            "INSERT INTO": lambda: self._after(
                "INSERT INTO store.t VALUES (1, 'ice', 1), (2, 'tea', 2), (3, 'salt', 3)"
            ),
            "CREATE TABLE AS SELECT": self._create_as,
            "saveAsTable": self._save_as,
            "writeTo": self._write_to,
            "UPDATE": self._update,
            "DELETE": lambda: self._after("DELETE FROM store.t WHERE n = 2"),
            "MERGE INTO": self._merge,
            "count": lambda: self._rows("SELECT count(*) FROM store.t WHERE n > 1"),
            "INSERT OVERWRITE": lambda: self._after("INSERT OVERWRITE store.c SELECT * FROM store.t WHERE id = 7", "c"),
            "ALTER TABLE ADD COLUMN": self._add_column,
            "ALTER TABLE RENAME COLUMN": lambda: self._altered("RENAME COLUMN item TO name"),
            "ALTER TABLE DROP COLUMN": lambda: self._altered("DROP COLUMN name"),
            "mergeSchema": self._merge_schema,
            "history": lambda: self._rows("SELECT count(*) > 3, max(timestamp) <= now() FROM store.t.history"),
            "VERSION AS OF": lambda: self._rows("SELECT id FROM store.t VERSION AS OF 'before' ORDER BY id"),
            "TIMESTAMP AS OF": lambda: self._rows("SELECT count(*) >= 2 FROM store.t TIMESTAMP AS OF now()"),
            "CHANGES": self._changes,
            "memwal_search": self._search,
            "CALL": self._call,
            "TRUNCATE": lambda: self._after("TRUNCATE TABLE store.t"),
            "DROP TABLE": self._drop,
        }
        return {name: _outcome(step) for name, step in steps.items()}

    def _rows(self, text: str, *columns: str) -> list[list[Any]]:
        frame = self._spark.sql(text)
        return [list(row) for row in (frame.select(*columns) if columns else frame).collect()]

    def _after(self, text: str, table: str = "t") -> list[list[Any]]:
        self._rows(text)
        return self._rows(f"SELECT * FROM store.{table} ORDER BY id")

    def _create(self) -> Outcome:
        self._rows(
            "CREATE TABLE store.t (id BIGINT NOT NULL PRIMARY KEY, item STRING, n INT) PARTITIONED BY (bucket(2, id))"
        )
        self._rows("CREATE TABLE store.m (id BIGINT NOT NULL, at INT NOT NULL) "
                   "TBLPROPERTIES ('primary_key' = 'id', 'sharding' = 'bucket(id, 2)', 'merge' = 'last-write:at')")  # fmt: skip
        properties = dict(self._rows("SHOW TBLPROPERTIES store.m"))
        self._rows("DROP TABLE store.m")
        return [[properties[name] for name in ("primary_key", "sharding", "merge")]]

    def _create_as(self) -> Outcome:
        return self._after(
            "CREATE TABLE store.c TBLPROPERTIES ('primary_key' = 'id') AS SELECT * FROM store.t WHERE n > 1", "c"
        )

    def _save_as(self) -> Outcome:
        self._spark.table("store.t").write.saveAsTable("store.s")
        return self._rows("SELECT count(*) FROM store.s")

    def _write_to(self) -> Outcome:
        self._spark.sql("SELECT 9 AS n, 9L AS id, 'new' AS item").writeTo("store.c").append()
        return self._rows("SELECT * FROM store.c ORDER BY id")

    def _update(self) -> Outcome:
        self._rows("CALL store.checkpoint(table => 't', name => 'before')")
        return self._after("UPDATE store.t SET item = upper(item) WHERE id = 1")

    def _merge(self) -> Outcome:
        return self._after(
            "MERGE INTO store.t t USING (SELECT 3L AS id UNION ALL SELECT 7L) s ON t.id = s.id "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, item, n) VALUES (s.id, 'oil', 7)"
        )

    def _changes(self) -> Outcome:
        between = "store.t CHANGES FROM VERSION 'before' TO VERSION 'merged'"
        return self._rows(f"SELECT _change_type, id FROM {between} ORDER BY 1, 2")

    def _add_column(self) -> Outcome:
        self._rows("CALL store.checkpoint('t', 'merged')")
        self._rows("ALTER TABLE store.t ADD COLUMN price DOUBLE")
        return self._rows("SELECT id, price FROM store.t ORDER BY id")

    def _altered(self, change: str) -> Outcome:
        self._rows(f"ALTER TABLE store.t {change}")
        return self._spark.table("store.t").columns

    def _merge_schema(self) -> Outcome:
        wider = self._spark.sql("SELECT 7L AS id, 7 AS n, 1.5D AS price, 'hi' AS note")
        place = f"{self._warehouse}/t.lance"
        wider.write.format("memwal").mode("append").option("mergeSchema", "true").save(place)
        return self._spark.table("store.t").columns

    def _search(self) -> Outcome:
        found = f"memwal_search('{self._warehouse}/t.lance', text => 'hi', column => 'note', columns => 'id', k => 3)"
        return self._rows(f"SELECT id FROM {found}")

    def _call(self) -> Outcome:
        done = []
        for name in ("flush", "compact", "gc", "verify", "maintain"):
            self._rows(f"CALL store.{name}(table => 't')")
            done.append([name])
        return sorted([*done, ["checkpoint_drop"]] if self._rows("CALL store.checkpoint_drop('t', 'merged')") else done)

    def _drop(self) -> Outcome:
        before = self._rows("SHOW TABLES IN store", "tableName")
        for (name,) in before:
            self._rows(f"DROP TABLE store.{name}")
        return sorted(before) if self._rows("SHOW TABLES IN store") == [] else "tables are left"


def _outcome(step: Callable[[], Outcome]) -> Outcome:
    try:
        return step()
    except Exception as error:  # a test compares what came with what is expected
        return f"{type(error).__name__}: {str(error)[:400]}"
