package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Gathers what a query needs of a table; Python is told all of it when the snapshot is taken. */
final class MemWalScanBuilder
    implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns, SupportsPushDownLimit, SupportsPushDownAggregates {
  private final MemWalTable table;
  private final CaseInsensitiveStringMap options;
  private final List<Predicate> pushed = new ArrayList<Predicate>();
  private final ArrayNode filters = Python.JSON.createArrayNode();
  private StructType schema;
  private int limit = -1;
  private boolean counts = false;

  MemWalScanBuilder(MemWalTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.options = options;
    this.schema = table.schema();
  }

  public Predicate[] pushPredicates(Predicate[] predicates) {
    Predicates trees = new Predicates(table.schema(), table.about().exact);
    List<Predicate> left = new ArrayList<Predicate>();
    for (int i = 0; i < predicates.length; i++) {
      JsonNode tree = trees.tree(predicates[i]);
      if (tree == null) {
        left.add(predicates[i]);
      } else {
        pushed.add(predicates[i]);
        filters.add(tree);
      }
    }
    return (Predicate[]) left.toArray(new Predicate[left.size()]);
  }

  public Predicate[] pushedPredicates() {
    return (Predicate[]) pushed.toArray(new Predicate[pushed.size()]);
  }

  public void pruneColumns(StructType required) {
    StructType found = new StructType();
    StructField[] all = table.schema().fields();
    for (int i = 0; i < all.length; i++) {
      if (required.getFieldIndex(all[i].name()).isDefined()) {
        found = found.add(all[i]);
      }
    }
    schema = found.length() > 0 ? found : narrowest();
  }

  /** Rows without columns have no form on their way from Python: one column comes with them. */
  private StructType narrowest() {
    StructField[] all = table.schema().fields();
    StructField found = all[0];
    for (int i = 1; i < all.length; i++) {
      if (all[i].dataType().defaultSize() < found.dataType().defaultSize()) {
        found = all[i];
      }
    }
    return new StructType().add(found);
  }

  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  public boolean pushAggregation(Aggregation aggregation) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    if (aggregation.groupByExpressions().length > 0 || functions.length != 1 || !(functions[0] instanceof CountStar)) {
      return false;
    }
    counts = true;
    schema = new StructType().add("count", DataTypes.LongType, false);
    return true;
  }

  public Scan build() {
    ObjectNode told = Python.object();
    told.set("filters", filters);
    if (limit >= 0) {
      told.put("limit", limit);
    }
    told.put("count", counts);
    Map<String, String> all = new HashMap<String, String>(options);
    all.put("__pushed", told.toString());
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(all);
    PythonDataSourceV2 source = Python.source(Python.TABLE);
    JsonNode found = Python.answer(Python.create(source, Python.TABLE, given).schema());
    if (counts && found.hasNonNull("count")) {
      return new KnownCount(schema, ((JsonNode) found.get("count")).asLong());
    }
    Scan inner = new PythonScanBuilder(source, Python.TABLE, schema, given).build();
    return new MemWalScan(inner, schema, table.name(), ((JsonNode) found.get("filter")).asText(), limit, counts, ((JsonNode) found.get("rows")).asLong());
  }
}
