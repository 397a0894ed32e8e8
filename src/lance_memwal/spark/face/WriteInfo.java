package io.memwal.spark;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark said about a write, with options and columns of our own. */
final class WriteInfo implements LogicalWriteInfo {
  private final LogicalWriteInfo given;
  private final CaseInsensitiveStringMap options;
  private final StructType schema;

  WriteInfo(LogicalWriteInfo given, CaseInsensitiveStringMap options, StructType schema) {
    this.given = given;
    this.options = options;
    this.schema = schema;
  }

  public CaseInsensitiveStringMap options() {
    return options;
  }

  public String queryId() {
    return given.queryId();
  }

  public StructType schema() {
    return schema;
  }
}
