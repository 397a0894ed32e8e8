package io.memwal.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/** The write of the Python sink. Its tasks with few rows need no Python (`SmallTasks`). */
final class SmallTasksWrite implements Write {
  private final Write inner;
  private final WriteInfo info;

  SmallTasksWrite(Write inner, WriteInfo info) {
    this.inner = inner;
    this.info = info;
  }

  public String description() {
    return inner.description();
  }

  public CustomMetric[] supportedCustomMetrics() {
    return inner.supportedCustomMetrics();
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return inner.reportDriverMetrics();
  }

  public BatchWrite toBatch() {
    final BatchWrite batch = inner.toBatch();
    final WriteInfo write = info;
    return new BatchWrite() {
      public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
        return SmallTasks.before(batch.createBatchWriterFactory(physical), write, physical);
      }

      public boolean useCommitCoordinator() {
        return batch.useCommitCoordinator();
      }

      public void commit(WriterCommitMessage[] messages) {
        batch.commit(messages);
      }

      public void abort(WriterCommitMessage[] messages) {
        batch.abort(messages);
      }
    };
  }

  public StreamingWrite toStreaming() {
    final StreamingWrite stream = inner.toStreaming();
    final WriteInfo write = info;
    return new StreamingWrite() {
      public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
        return SmallTasks.before(stream.createStreamingWriterFactory(physical), write, physical);
      }

      public boolean useCommitCoordinator() {
        return stream.useCommitCoordinator();
      }

      public void commit(long batch, WriterCommitMessage[] messages) {
        stream.commit(batch, messages);
      }

      public void abort(long batch, WriterCommitMessage[] messages) {
        stream.abort(batch, messages);
      }
    };
  }
}
