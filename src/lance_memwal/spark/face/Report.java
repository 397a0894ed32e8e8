package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What the commits of a table's writes did. Python leaves it in a file, beside this JVM; nothing is asked for it.
 *
 * <p>A report is about writes and not a part of them: where it cannot be read there are no numbers, and no error.
 */
final class Report {
  private static final String OPTION = "reportTo";

  private static File directory = null;

  private final File file;
  private volatile Map<String, String> values = Collections.<String, String>emptyMap();

  Report() {
    file = new File(directory(), UUID.randomUUID().toString());
  }

  private static synchronized File directory() {
    if (directory == null || !directory.isDirectory()) {
      try {
        directory = Files.createTempDirectory("memwal-reports-").toFile(); // which only this user can open
        directory.deleteOnExit();
      } catch (IOException error) {
        throw new IllegalStateException("there is no temporary directory on the driver: " + error.getMessage());
      }
    }
    return directory;
  }

  /** The options of a write, with the place where Python leaves what it did. */
  CaseInsensitiveStringMap in(Map<String, String> options) {
    Map<String, String> all = new HashMap<String, String>(options);
    all.put(OPTION, file.getPath());
    return new CaseInsensitiveStringMap(all);
  }

  /** Take what the commit that just ended has left. */
  void take() {
    Map<String, String> found = new HashMap<String, String>();
    try {
      if (file.exists()) {
        Iterator<Map.Entry<String, JsonNode>> items = Python.JSON.readTree(file).fields();
        while (items.hasNext()) {
          Map.Entry<String, JsonNode> item = (Map.Entry<String, JsonNode>) items.next();
          found.put((String) item.getKey(), ((JsonNode) item.getValue()).asText());
        }
      }
    } catch (IOException error) {
      found.clear();
    }
    file.delete();
    values = Collections.unmodifiableMap(found);
  }

  /** The numbers of the last commit, by name; none if it wrote nothing. */
  Map<String, String> values() {
    return values;
  }

  CustomTaskMetric[] metrics() {
    Map<String, String> known = values;
    CustomTaskMetric[] found = new CustomTaskMetric[known.size()];
    int at = 0;
    for (Object item : known.entrySet()) {
      final Map.Entry<String, String> entry = (Map.Entry<String, String>) item;
      final String name = (String) entry.getKey();
      final long value = Long.parseLong((String) entry.getValue());
      found[at++] =
          new CustomTaskMetric() {
            public String name() {
              return name;
            }

            public long value() {
              return value;
            }
          };
    }
    return found;
  }
}
