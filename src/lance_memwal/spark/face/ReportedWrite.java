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
  private boolean streams = false;

  ReportedWrite(Write inner, Report report) {
    this.inner = inner;
    this.report = report;
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
    return new BatchWrite() {
      public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return batch.createBatchWriterFactory(info);
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
    return new StreamingWrite() {
      public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        return stream.createStreamingWriterFactory(info);
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
