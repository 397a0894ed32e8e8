package io.memwal.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** What Spark's UI shows of a write. Spark makes them by the names of their classes. */
public final class Metrics {
  private Metrics() {}

  static CustomMetric[] all() {
    return new CustomMetric[] {new Rows(), new Bytes(), new Shards(), new Skipped(), new Rejected()};
  }

  public static class Rows extends CustomSumMetric {
    public String name() {
      return "rows";
    }

    public String description() {
      return "rows written to memwal shards";
    }
  }

  public static class Bytes extends CustomSumMetric {
    public String name() {
      return "size_bytes";
    }

    public String description() {
      return "bytes written to memwal shards";
    }
  }

  public static class Shards extends CustomSumMetric {
    public String name() {
      return "shards";
    }

    public String description() {
      return "memwal shards that the write touched";
    }
  }

  public static class Skipped extends CustomSumMetric {
    public String name() {
      return "skipped_shards";
    }

    public String description() {
      return "memwal shards that had this write already";
    }
  }

  public static class Rejected extends CustomSumMetric {
    public String name() {
      return "rejected_rows";
    }

    public String description() {
      return "rows kept out by a condition or the merge of the table";
    }
  }
}
