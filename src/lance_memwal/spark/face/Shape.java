package io.memwal.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Turns rows and row ids of Spark into rows of the sink: the columns of the table, then `_op`. */
final class Shape implements Serializable {
  static final String DELETE = "d";
  static final String INSERT = "i";
  static final String UPDATE = "u";

  /** An update that changes the key of a row: Python refuses the statement. */
  static final String CHANGED_KEY = "k";

  private final DataType[] types;
  private final int[] fromRow;
  private final int[] fromId;
  private final int[] keys;

  Shape(StructType written, StructType row, StructType id, List<String> key) {
    int count = written.length() - 1;
    types = new DataType[count];
    fromRow = new int[count];
    fromId = new int[count];
    for (int i = 0; i < count; i++) {
      String name = written.fields()[i].name();
      types[i] = written.fields()[i].dataType();
      fromRow[i] = place(row, name);
      fromId[i] = place(id, name);
    }
    keys = new int[key.size()];
    for (int i = 0; i < keys.length; i++) {
      keys[i] = place(written, (String) key.get(i));
    }
  }

  private static int place(StructType in, String name) {
    for (int i = 0; i < in.length(); i++) {
      if (in.fields()[i].name().equals(name)) {
        return i;
      }
    }
    return -1;
  }

  InternalRow row(InternalRow row, String op) {
    return made(row, fromRow, op);
  }

  InternalRow tombstone(InternalRow id) {
    return made(id, fromId, DELETE);
  }

  boolean isSameKey(InternalRow left, InternalRow right) {
    for (int i = 0; i < keys.length; i++) {
      if (!isSame(left, right, keys[i])) {
        return false;
      }
    }
    return true;
  }

  /** Whether two rows have the same key, sharding column and sequence. */
  boolean isSameId(InternalRow left, InternalRow right) {
    for (int i = 0; i < fromId.length; i++) {
      if (fromId[i] >= 0 && !isSame(left, right, i)) {
        return false;
      }
    }
    return true;
  }

  private boolean isSame(InternalRow left, InternalRow right, int at) {
    Object a = left.get(at, types[at]);
    Object b = right.get(at, types[at]);
    return a instanceof byte[] ? java.util.Arrays.equals((byte[]) a, (byte[]) b) : a.equals(b);
  }

  private InternalRow made(InternalRow given, int[] from, String op) {
    Object[] values = new Object[types.length + 1];
    for (int i = 0; i < types.length; i++) {
      if (from[i] >= 0 && !given.isNullAt(from[i])) {
        values[i] = InternalRow.copyValue(given.get(from[i], types[i]));
      }
    }
    values[types.length] = UTF8String.fromString(op);
    return new GenericInternalRow(values);
  }
}
