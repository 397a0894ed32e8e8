package io.memwal.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** `format("memwal")`, by path, and tables of Spark's own catalog that were made with `USING memwal`. */
public class MemWalSource implements TableProvider, DataSourceRegister {
  private static final Set<String> SPARKS_OWN =
      new HashSet<String>(
          Arrays.asList(
              new String[] {
                TableCatalog.PROP_OWNER,
                TableCatalog.PROP_PROVIDER,
                TableCatalog.PROP_LOCATION,
                TableCatalog.PROP_EXTERNAL,
                TableCatalog.PROP_COMMENT,
                TableCatalog.PROP_IS_MANAGED_LOCATION,
                TableCatalog.PROP_TABLE_TYPE,
                TableCatalog.PROP_COLLATION
              }));

  private About about = null;

  public String shortName() {
    return "memwal";
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    about = About.of(ours(options.asCaseSensitiveMap()));
    return about.schema;
  }

  public Transform[] inferPartitioning(CaseInsensitiveStringMap options) {
    return new Transform[0];
  }

  public boolean supportsExternalMetadata() {
    return true;
  }

  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    boolean named = properties.containsKey(TableCatalog.PROP_OWNER);
    return new MemWalTable("memwal", schema, ours(properties), about, named);
  }

  /** The options among the properties of a table in Spark's own catalog; those of a path are what they are. */
  private static Map<String, String> ours(Map<String, String> properties) {
    Map<String, String> found = new HashMap<String, String>();
    for (Object item : properties.entrySet()) {
      Map.Entry<String, String> entry = (Map.Entry<String, String>) item;
      String name = (String) entry.getKey();
      boolean option = name.startsWith(TableCatalog.OPTION_PREFIX);
      if (option) {
        found.put(name.substring(TableCatalog.OPTION_PREFIX.length()), (String) entry.getValue());
      } else if (!SPARKS_OWN.contains(name)) {
        found.put(name, (String) entry.getValue());
      }
    }
    if (!found.containsKey("path") && properties.containsKey(TableCatalog.PROP_LOCATION)) {
      found.put("path", (String) properties.get(TableCatalog.PROP_LOCATION));
    }
    return found;
  }
}
