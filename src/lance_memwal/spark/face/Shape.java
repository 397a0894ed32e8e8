package io.memwal.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** How the rows that Spark hands over become rows of the sink: the table's columns, then the mark of tombstones. */
final class Shape implements Serializable {
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

  InternalRow live(InternalRow row) {
    return made(row, fromRow, false);
  }

  InternalRow tombstone(InternalRow id) {
    return made(id, fromId, true);
  }

  boolean sameKey(InternalRow left, InternalRow right) {
    for (int i = 0; i < keys.length; i++) {
      Object a = left.get(keys[i], types[keys[i]]);
      Object b = right.get(keys[i], types[keys[i]]);
      boolean same = a instanceof byte[] ? java.util.Arrays.equals((byte[]) a, (byte[]) b) : a.equals(b);
      if (!same) {
        return false;
      }
    }
    return true;
  }

  private InternalRow made(InternalRow given, int[] from, boolean gone) {
    Object[] values = new Object[types.length + 1];
    for (int i = 0; i < types.length; i++) {
      if (from[i] >= 0 && !given.isNullAt(from[i])) {
        values[i] = InternalRow.copyValue(given.get(from[i], types[i]));
      }
    }
    values[types.length] = Boolean.valueOf(gone);
    return new GenericInternalRow(values);
  }
}
