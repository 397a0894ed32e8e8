package io.memwal.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One snapshot, with what was pushed down: the Python source reads it, this tells the planner how much it is. */
final class MemWalScan implements SupportsReportStatistics {
  private static final int ROW_BYTES = 8;

  private final Scan inner;
  private final StructType schema;
  private final String description;
  private final long rows;

  MemWalScan(Scan inner, StructType schema, String name, String filter, int limit, boolean counts, long rows) {
    this.inner = inner;
    this.schema = schema;
    this.rows = limit >= 0 ? Math.min(rows, limit) : rows;
    this.description =
        "memwal " + name + " [filter: " + (filter.isEmpty() ? "none" : filter) + (limit < 0 ? "" : ", limit: " + limit)
            + (counts ? ", counts" : "") + "]";
  }

  public StructType readSchema() {
    return schema;
  }

  public String description() {
    return description;
  }

  public Batch toBatch() {
    return inner.toBatch();
  }

  /** Without the option `__changeFeed` a stream is refused, in Python's words. */
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return inner.toMicroBatchStream(checkpoint);
  }

  public CustomMetric[] supportedCustomMetrics() {
    return inner.supportedCustomMetrics();
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return inner.reportDriverMetrics();
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return inner.columnarSupportMode();
  }

  /** Rows before the filter, so that a table is never taken for smaller than it may be. */
  public Statistics estimateStatistics() {
    final long count = rows;
    final long size = rows * (ROW_BYTES + schema.defaultSize());
    return new Statistics() {
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(size);
      }

      public OptionalLong numRows() {
        return OptionalLong.of(count);
      }
    };
  }
}
