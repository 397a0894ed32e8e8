package io.memwal.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The way from the JVM into Python, on the driver: all that we know of tables is there.
 *
 * <p>A command travels as options of the source `memwal_face`; its answer comes back as JSON in the metadata of a schema.
 */
final class Python {
  /** The pure Python source, which reads and writes tables. */
  static final String TABLE = "memwal_py";

  static final ObjectMapper JSON = new ObjectMapper();

  private static final String FACE = "memwal_face";
  private static final String ANSWER = "memwal";

  private Python() {}

  /** A Python source that nobody has used: Spark keeps one read plan in each of them. */
  static PythonDataSourceV2 source(String name) {
    PythonDataSourceV2 made = new PythonDataSourceV2();
    made.setShortName(name);
    return made;
  }

  /** What a command of `lance_memwal.spark.face.commands` answers. */
  static JsonNode ask(String command, ObjectNode arguments) {
    Map<String, String> options = new HashMap<String, String>();
    options.put("command", command);
    options.put("arguments", arguments.toString());
    PythonDataSourceCreationResult made = create(source(FACE), FACE, new CaseInsensitiveStringMap(options));
    return answer(made.schema());
  }

  static PythonDataSourceCreationResult create(PythonDataSourceV2 source, String name, CaseInsensitiveStringMap options) {
    return source.getOrCreateDataSourceInPython(name, options, (scala.Option<StructType>) (Object) scala.None$.MODULE$);
  }

  /** The answer that a schema carries; a refusal becomes an exception with its words. */
  static JsonNode answer(StructType schema) {
    JsonNode found = parse(schema.fields()[0].metadata().getString(ANSWER));
    if (found.has("refused")) {
      throw new IllegalArgumentException(((JsonNode) found.get("refused")).asText());
    }
    if (found.has("failed")) {
      throw new IllegalStateException(((JsonNode) found.get("failed")).asText());
    }
    return found;
  }

  static JsonNode parse(String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("an answer from Python is not JSON: " + error.getMessage());
    }
  }

  static ObjectNode object() {
    return JSON.createObjectNode();
  }

  static ObjectNode object(Map<String, String> values) {
    ObjectNode made = object();
    for (Object item : values.entrySet()) {
      Map.Entry<String, String> entry = (Map.Entry<String, String>) item;
      made.put((String) entry.getKey(), (String) entry.getValue());
    }
    return made;
  }
}
