package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** What Python says about a table: its columns, its key, and which columns Lance compares exactly as Spark does. */
final class About {
  final StructType schema;
  final List<String> key;
  final List<String> forDelete;
  final Set<String> exact;
  final String unchanging;
  final Map<String, String> properties;

  private About(JsonNode found) {
    schema = (StructType) DataType.fromJson(((JsonNode) found.get("schema")).toString());
    key = texts((JsonNode) found.get("key"));
    forDelete = texts((JsonNode) found.get("for_delete"));
    exact = Collections.unmodifiableSet(new HashSet<String>(texts((JsonNode) found.get("exact"))));
    unchanging = ((JsonNode) found.get("unchanging")).asText();
    Map<String, String> shown = new TreeMap<String, String>();
    Iterator<Map.Entry<String, JsonNode>> items = ((JsonNode) found.get("properties")).fields();
    while (items.hasNext()) {
      Map.Entry<String, JsonNode> item = (Map.Entry<String, JsonNode>) items.next();
      shown.put((String) item.getKey(), ((JsonNode) item.getValue()).asText());
    }
    properties = Collections.unmodifiableMap(shown);
  }

  /** The table that these options name. */
  static About of(Map<String, String> options) {
    ObjectNode arguments = Python.object();
    arguments.set("options", Python.object(Session.told(options)));
    return new About(Python.ask("describe", arguments));
  }

  /** An answer that describes a table; null if it says that there is none. */
  static About parse(JsonNode found) {
    return found.has("missing") ? null : new About(found);
  }

  static List<String> texts(JsonNode array) {
    List<String> found = new ArrayList<String>();
    for (int i = 0; i < array.size(); i++) {
      found.add(((JsonNode) array.get(i)).asText());
    }
    return found;
  }
}
