package io.memwal.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.StructType;

/** A count that the snapshot knows: no task runs for it. */
final class KnownCount implements LocalScan {
  private final StructType schema;
  private final long count;

  KnownCount(StructType schema, long count) {
    this.schema = schema;
    this.count = count;
  }

  public StructType readSchema() {
    return schema;
  }

  public String description() {
    return "memwal count";
  }

  public InternalRow[] rows() {
    return new InternalRow[] {new GenericInternalRow(new Object[] {Long.valueOf(count)})};
  }
}
