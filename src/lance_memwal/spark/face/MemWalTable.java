package io.memwal.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table as Spark's planner sees it. Every scan is a snapshot of its own, taken when the query is planned. */
class MemWalTable
    implements SupportsRead, SupportsWrite, SupportsRowLevelOperations, SupportsSchemaEvolution, TruncatableTable {
  private final String name;
  private final StructType schema;
  private final Map<String, String> options;
  private final boolean named;
  private About about;
  private Pinned merged = null;
  private PythonDataSourceV2 sink = null;
  private CaseInsensitiveStringMap sinkOptions = null;

  /** `named`: a table of a catalog, which has properties; a path has the columns of whatever is read from it or written. */
  MemWalTable(String name, StructType schema, Map<String, String> options, About about, boolean named) {
    this.name = name;
    this.schema = schema;
    this.options = options;
    this.about = about;
    this.named = named;
  }

  synchronized About about() {
    if (about == null) {
      about = About.of(options);
    }
    return about;
  }

  public String name() {
    return name;
  }

  /** What the progress of a stream calls its sink. */
  public String toString() {
    return "memwal[" + ((String) options.getOrDefault("path", name)).split("\\?")[0] + "]";
  }

  public StructType schema() {
    return schema;
  }

  public Map<String, String> properties() {
    return named && about != null ? about.properties : Collections.<String, String>emptyMap();
  }

  public Set<TableCapability> capabilities() {
    Set<TableCapability> found = new HashSet<TableCapability>();
    found.add(TableCapability.BATCH_READ);
    found.add(TableCapability.MICRO_BATCH_READ);
    found.add(TableCapability.BATCH_WRITE);
    found.add(TableCapability.STREAMING_WRITE);
    found.add(TableCapability.TRUNCATE);
    if (named) {
      found.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    }
    return found;
  }

  /** The options of the table, and those of one read or write of it. */
  CaseInsensitiveStringMap with(CaseInsensitiveStringMap given) {
    Map<String, String> all = new HashMap<String, String>(new CaseInsensitiveStringMap(options));
    all.putAll(given);
    return new CaseInsensitiveStringMap(Session.told(all));
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> options = new HashMap<String, String>(given);
    if (isMerged(given)) {
      merged.read(options);
    }
    return scan(new CaseInsensitiveStringMap(options));
  }

  /** Whether the running statement is a MERGE into this table that only inserts; then `merged` has its snapshot. */
  private boolean isMerged(CaseInsensitiveStringMap given) {
    if (merged == null && Statement.isMergeThatInserts(this)) {
      merged = new Pinned(this, given);
    }
    return merged != null;
  }

  ScanBuilder scan(CaseInsensitiveStringMap given) {
    CaseInsensitiveStringMap all = with(given);
    if (all.getBoolean("__changeFeed", false)) {
      return new PythonScanBuilder(Python.source(Python.TABLE), Python.TABLE, schema, all);
    }
    return new MemWalScanBuilder(this, all);
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Map<String, String> options = new HashMap<String, String>(with(info.options()));
    if (isMerged(info.options())) {
      merged.write(options);
    }
    WriteInfo write = new WriteInfo(info, new CaseInsensitiveStringMap(options), info.schema());
    return new Upserts(sink(write.options()), write);
  }

  /** The Python source that writes with these options, made once for all micro-batches of a stream: it is its options. */
  private synchronized PythonDataSourceV2 sink(CaseInsensitiveStringMap given) {
    if (sink == null || !given.equals(sinkOptions)) {
      sink = Python.source(Python.TABLE);
      sinkOptions = given;
    }
    return sink;
  }

  /** WITH SCHEMA EVOLUTION adds columns; the catalog does it as ALTER TABLE does. */
  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    return change instanceof TableChange.AddColumn && change.fieldNames().length == 1;
  }

  public boolean truncateTable() {
    ObjectNode arguments = Python.object();
    arguments.set("options", Python.object(options));
    Python.ask("truncate_table", arguments);
    return true;
  }

  public RowLevelOperationBuilder newRowLevelOperationBuilder(final RowLevelOperationInfo info) {
    final MemWalTable table = this;
    refuseWhatCannotChange(info.command());
    return new RowLevelOperationBuilder() {
      public RowLevelOperation build() {
        return new RowChanges(table, info);
      }
    };
  }

  private void refuseWhatCannotChange(RowLevelOperation.Command command) {
    if (about().key.isEmpty()) {
      throw new IllegalArgumentException(
          "the table has no primary key, so that its rows cannot be changed: " + command + " needs one");
    }
    if (command != RowLevelOperation.Command.DELETE && !about().unchanging.isEmpty()) {
      throw new IllegalArgumentException(about().unchanging);
    }
    StructField[] fields = about().schema.fields();
    for (int i = 0; i < fields.length; i++) {
      if (fields[i].nullable() && about().forDelete.contains(fields[i].name())) {
        throw new IllegalArgumentException(
            "column " + fields[i].name() + " decides where or when a row goes, and may be null: " + command + " cannot follow it");
      }
    }
  }
}
