package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What changed between two moments of a table; Python reads it.
 *
 * <p>Versions are moments, at which nothing changes: whether a bound is inclusive makes no difference to them. Times are those of
 * entries, in whole milliseconds.
 */
final class Changes implements Changelog {
  private static final String SOURCE = "memwal_changes";
  private static final long MILLI = 1000;

  private final String name;
  private final StructType schema;
  private final List<String> key;
  private final Map<String, String> options;

  Changes(String name, JsonNode found, Map<String, String> storage) {
    this.name = name;
    schema = (StructType) DataType.fromJson(((JsonNode) found.get("schema")).toString());
    key = About.texts((JsonNode) found.get("key"));
    options = new HashMap<String, String>(storage);
    Iterator<Map.Entry<String, JsonNode>> items = ((JsonNode) found.get("options")).fields();
    while (items.hasNext()) {
      Map.Entry<String, JsonNode> item = (Map.Entry<String, JsonNode>) items.next();
      options.put((String) item.getKey(), ((JsonNode) item.getValue()).asText());
    }
  }

  /** The arguments of a command, with the range as moments: from the first on, up to the second, which does not come. */
  static ObjectNode range(ObjectNode arguments, ChangelogRange range) {
    if (range instanceof ChangelogRange.VersionRange) {
      ChangelogRange.VersionRange versions = (ChangelogRange.VersionRange) range;
      arguments.put("from", versions.startingVersion());
      if (versions.endingVersion().isPresent()) {
        arguments.put("to", (String) versions.endingVersion().get());
      }
      return arguments;
    }
    if (range instanceof ChangelogRange.TimestampRange) {
      ChangelogRange.TimestampRange times = (ChangelogRange.TimestampRange) range;
      arguments.put("from", moment(times.startingTimestamp(), !times.startingBoundInclusive()));
      if (times.endingTimestamp().isPresent()) {
        arguments.put("to", moment(((Long) times.endingTimestamp().get()).longValue(), times.endingBoundInclusive()));
      }
      return arguments;
    }
    throw new IllegalArgumentException("say where the changes begin: CHANGES FROM VERSION ..., or FROM TIMESTAMP ...");
  }

  /** The first millisecond at or after a time, or the first after it. */
  private static String moment(long micros, boolean after) {
    long whole = Math.floorDiv(micros, MILLI);
    return Instant.ofEpochMilli(after || whole * MILLI < micros ? whole + 1 : whole).toString();
  }

  public String name() {
    return name;
  }

  public Column[] columns() {
    return CatalogV2Util.structTypeToV2Columns(schema, false);
  }

  public boolean containsCarryoverRows() {
    return false;
  }

  /** A key may change more than once; Spark can leave the last change of each. */
  public boolean containsIntermediateChanges() {
    return !key.isEmpty();
  }

  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  public NamedReference[] rowId() {
    return RowChanges.references(key);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return new PythonScanBuilder(Python.source(SOURCE), SOURCE, schema, new CaseInsensitiveStringMap(options));
  }
}
