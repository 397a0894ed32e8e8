package io.memwal.spark;

import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** Rows that are written are upserts (or appends, without a key): so the rows of a stream in update mode are, too. */
final class Upserts extends PythonWriteBuilder implements SupportsStreamingUpdateAsAppend {
  private final WriteInfo info;

  Upserts(PythonDataSourceV2 source, WriteInfo info) {
    super(source, Python.TABLE, info);
    this.info = info;
  }

  public Write build() {
    return new SmallTasksWrite(super.build(), info);
  }
}
