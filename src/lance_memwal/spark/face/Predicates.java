package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Predicates of Spark as trees of JSON, for `lance_memwal.spark.face.predicates`, which writes filters of Lance.
 *
 * <p>Only what both evaluate alike has a tree: comparisons of a column with a value of its own type, where Python says that
 * the column is compared exactly. Everything else stays with Spark.
 */
final class Predicates {
  private static final Set<String> COMPARED = new HashSet<String>(Arrays.asList(new String[] {"=", "<=>", "<", "<=", ">", ">="}));
  private static final int MOST_VALUES = 10000;
  private static final int DEEPEST = 100;

  private final StructType schema;
  private final Set<String> exact;

  Predicates(StructType schema, Set<String> exact) {
    this.schema = schema;
    this.exact = exact;
  }

  /** The tree of a predicate, or null if it stays with Spark. */
  JsonNode tree(Predicate predicate) {
    return tree(predicate, 0);
  }

  private JsonNode tree(Expression expression, int depth) {
    if (!(expression instanceof Predicate) || depth > DEEPEST) {
      return null;
    }
    Predicate predicate = (Predicate) expression;
    String name = predicate.name();
    Expression[] children = predicate.children();
    if (name.equals("AND") || name.equals("OR") || name.equals("NOT")) {
      return joined(name.toLowerCase(java.util.Locale.ROOT), children, depth);
    }
    if (name.equals("IS_NULL") || name.equals("IS_NOT_NULL")) {
      StructField column = column(children[0]);
      return column == null ? null : node(name.toLowerCase(java.util.Locale.ROOT), column);
    }
    if (name.equals("IN")) {
      return listed(children);
    }
    return COMPARED.contains(name) && children.length == 2 ? compared(name, children) : null;
  }

  private JsonNode joined(String name, Expression[] children, int depth) {
    ArrayNode made = Python.JSON.createArrayNode().add(name);
    for (int i = 0; i < children.length; i++) {
      JsonNode child = tree(children[i], depth + 1);
      if (child == null) {
        return null;
      }
      made.add(child);
    }
    return made;
  }

  private JsonNode compared(String name, Expression[] children) {
    StructField column = column(children[0]);
    ArrayNode made = column == null ? null : node(name, column);
    return made != null && value(made, children[1], column.dataType()) ? made : null;
  }

  private JsonNode listed(Expression[] children) {
    StructField column = column(children[0]);
    if (column == null || children.length > MOST_VALUES + 1) {
      return null;
    }
    ArrayNode made = node("in", column);
    for (int i = 1; i < children.length; i++) {
      if (!value(made, children[i], column.dataType())) {
        return null;
      }
    }
    return made;
  }

  private static ArrayNode node(String name, StructField column) {
    return Python.JSON.createArrayNode().add(name).add(column.name());
  }

  /** The column that an expression is, if Lance compares it as Spark does. */
  private StructField column(Expression expression) {
    if (!(expression instanceof NamedReference)) {
      return null;
    }
    String[] names = ((NamedReference) expression).fieldNames();
    if (names.length != 1 || !exact.contains(names[0])) {
      return null;
    }
    StructField[] fields = schema.fields();
    for (int i = 0; i < fields.length; i++) {
      if (fields[i].name().equals(names[0])) {
        return fields[i];
      }
    }
    return null;
  }

  /** Whether the expression is a value of this type that is not null; then it was added. */
  private static boolean value(ArrayNode to, Expression expression, DataType type) {
    if (!(expression instanceof Literal)) {
      return false;
    }
    Literal literal = (Literal) expression;
    Object value = literal.value();
    if (value == null || !type.equals(literal.dataType())) {
      return false;
    }
    if (value instanceof Boolean) {
      to.add((Boolean) value);
    } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
      to.add(((Number) value).longValue());
    } else {
      to.add(value.toString());
    }
    return true;
  }
}
