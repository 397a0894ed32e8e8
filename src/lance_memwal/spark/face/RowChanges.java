package io.memwal.spark;

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
 * UPDATE, DELETE and MERGE: Spark finds the rows, and the Python sink writes the changed rows and a tombstone per deleted row.
 *
 * <p>The column `_op` says what a row is (see `Shape`); Python refuses changed keys, and inserts of keys that exist.
 */
final class RowChanges implements SupportsDelta {
  private static final String OP = "_op";

  private final MemWalTable table;
  private final RowLevelOperationInfo info;
  private final Pinned pinned;

  RowChanges(MemWalTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.info = info;
    pinned = new Pinned(table, info.options());
  }

  public Command command() {
    return info.command();
  }

  public String description() {
    return "memwal " + info.command();
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<String, String>(options);
    pinned.read(all);
    return table.scan(new CaseInsensitiveStringMap(all));
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
    Map<String, String> options = new HashMap<String, String>(table.with(info.options()));
    pinned.write(options);
    StructType columns = written(table.about().schema);
    WriteInfo inner = new WriteInfo(given, new CaseInsensitiveStringMap(options), columns);
    final Write write = new PythonWriteBuilder(Python.source(Python.TABLE), Python.TABLE, inner).build();
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

  /** The columns of the table, of which a tombstone has only some, and `_op`. */
  private static StructType written(StructType table) {
    StructType found = new StructType();
    StructField[] fields = table.fields();
    for (int i = 0; i < fields.length; i++) {
      found = found.add(fields[i].name(), fields[i].dataType(), true);
    }
    return found.add(OP, DataTypes.StringType, false);
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
