package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collections;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that a statement creates, or whose rows it replaces. Only the write knows the options of a DataFrame, so that nothing
 * is created before it. A table that exists keeps its rows until the commit of the write, which overwrites them.
 */
final class Staged extends MemWalTable implements StagedTable {
  private final MemWalCatalog catalog;
  private final ObjectNode arguments;
  private final boolean replaces;
  private MemWalTable target = null;
  private boolean writes = false;

  Staged(MemWalCatalog catalog, ObjectNode arguments, StructType schema, boolean replaces) {
    super(((JsonNode) arguments.get("table")).asText(), schema, Collections.<String, String>emptyMap(), null, true);
    this.catalog = catalog;
    this.arguments = arguments;
    this.replaces = replaces;
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    begin(info.options().asCaseSensitiveMap());
    writes = true;
    WriteBuilder builder = target.newWriteBuilder(info);
    return replaces ? ((SupportsTruncate) builder).truncate() : builder;
  }

  /** Create the table, or return only if its rows can be replaced. */
  private void begin(Map<String, String> options) {
    arguments.set("options", Python.object(options));
    target = catalog.begun(arguments, replaces ? "replace_table" : "create_table");
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  public void commitStagedChanges() {
    if (target == null) {
      begin(Collections.<String, String>emptyMap());
    }
    if (replaces && !writes) {
      target.truncateTable();
    }
  }

  public void abortStagedChanges() {
    if (target != null && !replaces) {
      Python.ask("drop_table", arguments);
    }
  }
}
