"""SQL statements through the JVM face, the same on every deployment of Spark."""

from __future__ import annotations

from typing import Any

EXPECTED_SQL = {"face": "jvm", "rows": [[1, "ICE", 1], [7, "oil", 7]], "counted": 1}


def run_statements(spark: Any, face: str, warehouse: str) -> dict[str, Any]:
    """Make a table, change its rows by every kind of statement, and read them back."""
    spark.conf.set("spark.sql.catalog.store", "io.memwal.spark.MemWalCatalog")
    spark.conf.set("spark.sql.catalog.store.warehouse", warehouse)
    for text in (
        "CREATE TABLE store.t (id BIGINT NOT NULL PRIMARY KEY, item STRING, n INT) PARTITIONED BY (bucket(2, id))",
        "INSERT INTO store.t VALUES (1, 'ice', 1), (2, 'tea', 2), (3, 'salt', 3)",
        "UPDATE store.t SET item = upper(item) WHERE id = 1",
        "DELETE FROM store.t WHERE n = 2",
        "MERGE INTO store.t t USING (SELECT 3L AS id UNION ALL SELECT 7L) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, item, n) VALUES (s.id, 'oil', 7)",
    ):
        spark.sql(text).collect()
    rows = [list(row) for row in spark.sql("SELECT * FROM store.t ORDER BY id").collect()]
    counted = spark.sql("SELECT count(*) AS c FROM store.t WHERE n > 1").collect()[0]["c"]
    return {"face": face, "rows": rows, "counted": counted}
