package io.memwal.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What a session says: about names and times, for Python, which does not see its settings (options, unless they were given), and
 * about statements that meet each other.
 */
final class Session {
  private static final String ON_CONFLICT = "spark.memwal.onConflict";

  private Session() {}

  /** Whether statements of the session write over what others wrote since they were planned. */
  static boolean overwrites() {
    String found = SQLConf.get().getConfString(ON_CONFLICT, "error");
    if (!found.equals("error") && !found.equals("overwrite")) {
      throw new IllegalArgumentException(ON_CONFLICT + " is error or overwrite, not " + found);
    }
    return found.equals("overwrite");
  }

  static Map<String, String> told(Map<String, String> options) {
    SQLConf conf = SQLConf.get();
    Map<String, String> all = new HashMap<String, String>(options);
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    if (!given.containsKey("timeZone")) {
      all.put("timeZone", conf.sessionLocalTimeZone());
    }
    all.put("__caseSensitive", String.valueOf(conf.caseSensitiveAnalysis()));
    return all;
  }
}
