package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Collections;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The few rows of an answer from Python: what a procedure returns, or a table about a table. */
final class Rows implements LocalScan, SupportsRead, ScanBuilder {
  private final String name;
  private final StructType schema;
  private final InternalRow[] rows;

  Rows(String name, JsonNode answer) {
    this.name = name;
    schema = (StructType) DataType.fromJson(((JsonNode) answer.get("schema")).toString());
    JsonNode given = (JsonNode) answer.get("rows");
    rows = new InternalRow[given.size()];
    for (int i = 0; i < rows.length; i++) {
      rows[i] = row((JsonNode) given.get(i));
    }
  }

  private InternalRow row(JsonNode given) {
    Object[] values = new Object[schema.length()];
    for (int i = 0; i < values.length; i++) {
      JsonNode value = (JsonNode) given.get(i);
      values[i] = value.isNull() ? null : value(value, schema.fields()[i].dataType());
    }
    return new GenericInternalRow(values);
  }

  private static Object value(JsonNode value, DataType type) {
    if (type.equals(DataTypes.BooleanType)) {
      return Boolean.valueOf(value.asBoolean());
    }
    if (type.equals(DataTypes.LongType) || type.equals(DataTypes.TimestampType)) {
      return Long.valueOf(value.asLong());
    }
    if (type.equals(DataTypes.DoubleType)) {
      return Double.valueOf(value.asDouble());
    }
    return UTF8String.fromString(value.asText());
  }

  public String name() {
    return name;
  }

  public StructType schema() {
    return schema;
  }

  public Set<TableCapability> capabilities() {
    return Collections.singleton(TableCapability.BATCH_READ);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return this;
  }

  public Scan build() {
    return this;
  }

  public StructType readSchema() {
    return schema;
  }

  public String description() {
    return "memwal " + name;
  }

  public InternalRow[] rows() {
    return rows;
  }
}
