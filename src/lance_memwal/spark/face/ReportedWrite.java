package io.memwal.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * The Python sink's write, whose commits are reported to Spark.
 *
 * <p>Spark's UI takes numbers of a commit from batch writes only: a stream would show zeros there, and has them in its progress.
 */
final class ReportedWrite implements Write {
  private final Write inner;
  private final Report report;
  private final WriteInfo info;
  private boolean streams = false;

  /** With `info`, tasks with few rows need no Python. */
  ReportedWrite(Write inner, Report report, WriteInfo info) {
    this.inner = inner;
    this.report = report;
    this.info = info;
  }

  public String description() {
    return inner.description();
  }

  public CustomMetric[] supportedCustomMetrics() {
    CustomMetric[] own = streams ? new CustomMetric[0] : Metrics.all();
    CustomMetric[] first = inner.supportedCustomMetrics();
    CustomMetric[] all = (CustomMetric[]) Arrays.copyOf(first, first.length + own.length);
    System.arraycopy(own, 0, all, first.length, own.length);
    return all;
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    CustomTaskMetric[] own = report.metrics();
    CustomTaskMetric[] first = inner.reportDriverMetrics();
    CustomTaskMetric[] all = (CustomTaskMetric[]) Arrays.copyOf(first, first.length + own.length);
    System.arraycopy(own, 0, all, first.length, own.length);
    return all;
  }

  public BatchWrite toBatch() {
    final BatchWrite batch = inner.toBatch();
    final Report left = report;
    final WriteInfo write = info;
    return new BatchWrite() {
      public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
        DataWriterFactory python = batch.createBatchWriterFactory(physical);
        return write == null ? python : SmallTasks.before(python, write, physical);
      }

      public boolean useCommitCoordinator() {
        return batch.useCommitCoordinator();
      }

      public void commit(WriterCommitMessage[] messages) {
        try {
          batch.commit(messages);
        } finally {
          left.take();
        }
      }

      public void abort(WriterCommitMessage[] messages) {
        batch.abort(messages);
      }
    };
  }

  public StreamingWrite toStreaming() {
    streams = true;
    final StreamingWrite stream = inner.toStreaming();
    final Report left = report;
    final WriteInfo write = info;
    return new StreamingWrite() {
      public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
        return SmallTasks.before(stream.createStreamingWriterFactory(physical), write, physical);
      }

      public boolean useCommitCoordinator() {
        return stream.useCommitCoordinator();
      }

      public void commit(long batch, WriterCommitMessage[] messages) {
        try {
          stream.commit(batch, messages);
        } finally {
          left.take();
        }
      }

      public void abort(long batch, WriterCommitMessage[] messages) {
        stream.abort(batch, messages);
      }
    };
  }
}
