package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The snapshot that UPDATE, DELETE or MERGE reads. Keys that other writers wrote since then are a conflict, unless the session
 * overwrites them.
 */
final class Pinned {
  private final MemWalTable table;
  private final CaseInsensitiveStringMap given;
  private final boolean overwrites = Session.overwrites();
  private String snapshot = null;

  Pinned(MemWalTable table, CaseInsensitiveStringMap given) {
    this.table = table;
    this.given = given;
  }

  /** Add the options of a read of the statement. */
  void read(Map<String, String> options) {
    options.put("asOf", snapshot());
  }

  /** Add the options of the write of the statement. */
  void write(Map<String, String> options) {
    options.put("duplicates", "live");
    options.put("__statementOn", snapshot());
    if (!overwrites) {
      options.put("__unchangedSince", snapshot());
    }
  }

  private synchronized String snapshot() {
    if (snapshot == null) {
      ObjectNode arguments = Python.object();
      arguments.set("options", Python.object(table.with(given)));
      snapshot = ((JsonNode) Python.ask("snapshot", arguments).get("snapshot")).asText();
    }
    return snapshot;
  }
}
