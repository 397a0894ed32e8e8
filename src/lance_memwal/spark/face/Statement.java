package io.memwal.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.logical.InsertOnlyMerge;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.internal.SQLConf;

/** The command that Spark runs on this thread. */
final class Statement {
  private static final String CLASSIC = "org.apache.spark.sql.classic.";

  private Statement() {}

  /** Whether the command is a MERGE into `table` that only inserts rows, which Spark writes as it writes an INSERT. */
  static boolean isMergeThatInserts(Object table) {
    LogicalPlan plan = plan();
    return plan instanceof InsertOnlyMerge && ((DataSourceV2Relation) ((V2WriteCommand) plan).table()).table() == table;
  }

  /**
   * Return only if the data source of a new table is memwal. Without a format, `df.write` and `df.writeStream` name the default
   * source of the session.
   */
  static void refuseOtherSource(String name) {
    boolean isDefault = SQLConf.get().defaultDataSourceName().equals(name) && !saysSource();
    if (name != null && !name.equalsIgnoreCase("memwal") && !isDefault) {
      throw new IllegalArgumentException(
          "the tables of this catalog are memwal tables, not " + name + ": leave out USING, or name the table of another catalog");
    }
  }

  /** Whether SQL text or `df.writeTo` runs the command. Only the calls on the stack show it, also on a Connect server. */
  private static boolean saysSource() {
    StackTraceElement[] calls = Thread.currentThread().getStackTrace();
    for (int i = 0; i < calls.length; i++) {
      String name = calls[i].getClassName() + "." + calls[i].getMethodName();
      if (name.equals(CLASSIC + "SparkSession.sql") || name.startsWith(CLASSIC + "DataFrameWriterV2.")) {
        return true;
      }
    }
    return false;
  }

  /** The analyzed plan; null outside of a command. */
  private static LogicalPlan plan() {
    String id = SparkContext.getOrCreate().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution found = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return found == null ? null : found.logical();
  }
}
