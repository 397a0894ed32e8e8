package io.memwal.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a session says about names and times, for Python, which does not see its settings: options, unless they were given. */
final class Session {
  private Session() {}

  static Map<String, String> told(Map<String, String> options) {
    SQLConf conf = SQLConf.get();
    Map<String, String> all = new HashMap<String, String>(options);
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    if (!given.containsKey("timeZone")) {
      all.put("timeZone", conf.sessionLocalTimeZone());
    }
    if (!given.containsKey("caseSensitive")) {
      all.put("caseSensitive", String.valueOf(conf.caseSensitiveAnalysis()));
    }
    return all;
  }
}
