package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, DELETE and MERGE: Spark finds the rows, and what becomes of them goes to the Python sink.
 *
 * <p>Rows that go are tombstones there. A row whose key changes leaves a tombstone at the old one, unless another row takes it.
 * A statement reads one snapshot; keys that others wrote since then are a conflict, unless the session says that it wins.
 */
final class RowChanges implements SupportsDelta {
  static final String TOMBSTONE = "_tombstone";

  private final MemWalTable table;
  private final RowLevelOperationInfo info;
  private final boolean overwrites = Session.overwrites();
  private String snapshot = null;

  RowChanges(MemWalTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.info = info;
  }

  public Command command() {
    return info.command();
  }

  public String description() {
    return "memwal " + info.command();
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(new CaseInsensitiveStringMap(planned(options, "asOf")));
  }

  /** The options of a read or a write, with the snapshot that the statement is planned on as one of them. */
  private Map<String, String> planned(Map<String, String> options, String name) {
    Map<String, String> all = new HashMap<String, String>(options);
    if (!overwrites) {
      all.put(name, snapshot());
    }
    return all;
  }

  private synchronized String snapshot() {
    if (snapshot == null) {
      ObjectNode arguments = Python.object();
      arguments.set("options", Python.object(table.with(info.options())));
      snapshot = ((JsonNode) Python.ask("snapshot", arguments).get("snapshot")).asText();
    }
    return snapshot;
  }

  /** What a tombstone needs: the key, and the columns that say where it goes and when. */
  public NamedReference[] rowId() {
    return references(table.about().forDelete);
  }

  static NamedReference[] references(List<String> names) {
    NamedReference[] found = new NamedReference[names.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Expressions.column(quoted((String) names.get(i)));
    }
    return found;
  }

  private static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo given) {
    Map<String, String> options = planned(table.with(info.options()), "unchangedSince");
    options.put("duplicates", "live");
    StructType columns = written(table.about().schema);
    final Report report = new Report();
    WriteInfo inner = new WriteInfo(given, report.in(options), columns);
    Write python = new PythonWriteBuilder(Python.source(Python.TABLE), Python.TABLE, inner).build();
    final Write write = new ReportedWrite(python, report, null); // its tasks hold rows themselves
    final Shape shape =
        new Shape(columns, given.schema(), (StructType) given.rowIdSchema().orElse(new StructType()), table.about().key);
    return new DeltaWriteBuilder() {
      public DeltaWrite build() {
        return new DeltaWrite() {
          public DeltaBatchWrite toBatch() {
            return new ChangedRows(write.toBatch(), shape);
          }

          public CustomMetric[] supportedCustomMetrics() {
            return write.supportedCustomMetrics();
          }

          public CustomTaskMetric[] reportDriverMetrics() {
            return write.reportDriverMetrics();
          }
        };
      }
    };
  }

  /** The columns of the table, of which a tombstone has only some, and the mark of tombstones. */
  private static StructType written(StructType table) {
    StructType found = new StructType();
    StructField[] fields = table.fields();
    for (int i = 0; i < fields.length; i++) {
      found = found.add(fields[i].name(), fields[i].dataType(), true);
    }
    return found.add(TOMBSTONE, DataTypes.BooleanType, false);
  }

  /** The write: the Python sink's own, whose tasks hand in one message per chunk. */
  private static final class ChangedRows implements DeltaBatchWrite {
    private final BatchWrite sink;
    private final Shape shape;

    ChangedRows(BatchWrite sink, Shape shape) {
      this.sink = sink;
      this.shape = shape;
    }

    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      return new ChangeWriters(sink.createBatchWriterFactory(physical), shape);
    }

    public boolean useCommitCoordinator() {
      return sink.useCommitCoordinator();
    }

    public void commit(WriterCommitMessage[] messages) {
      sink.commit(Chunks.of(messages));
    }

    public void abort(WriterCommitMessage[] messages) {
      sink.abort(Chunks.of(messages));
    }
  }
}
