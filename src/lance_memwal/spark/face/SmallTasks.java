package io.memwal.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.execution.arrow.ArrowConverters;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * Tasks with few rows pass them to the commit unchanged and need no Python. All other tasks are the Python sink's own.
 *
 * <p>The commit then does what a task would have done (`lance_memwal.spark.pieces.unsplit`). A task passes at most 256 KiB, and all tasks
 * of a write together at most 8 MiB.
 */
final class SmallTasks implements StreamingDataWriterFactory, DataWriterFactory {
  private static final long ALL_BYTES = 8 << 20;
  private static final long TASK_BYTES = 256 << 10;

  private final DataWriterFactory inner;
  private final StructType schema;
  private final String zone;
  private final long most;

  private SmallTasks(DataWriterFactory inner, StructType schema, String zone, long most) {
    this.inner = inner;
    this.schema = schema;
    this.zone = zone;
    this.most = most;
  }

  /** `inner` is a factory of the Python sink, which serves streams and batches alike. */
  static SmallTasks before(Object inner, WriteInfo write, PhysicalWriteInfo physical) {
    long most = Math.min(TASK_BYTES, ALL_BYTES / Math.max(1, physical.numPartitions()));
    return new SmallTasks((DataWriterFactory) inner, write.schema(), SQLConf.get().sessionLocalTimeZone(), most);
  }

  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    return createWriter(partition, task);
  }

  public DataWriter<InternalRow> createWriter(int partition, long task) {
    return new Writer(this, partition, task);
  }

  private static final class Writer implements DataWriter<InternalRow> {
    private final SmallTasks tasks;
    private final int partition;
    private final long task;
    private final List<InternalRow> held = new ArrayList<InternalRow>();
    private DataWriter<InternalRow> python = null;

    Writer(SmallTasks tasks, int partition, long task) {
      this.tasks = tasks;
      this.partition = partition;
      this.task = task;
    }

    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      long bytes = 0;
      while (bytes <= tasks.most && rows.hasNext()) {
        InternalRow row = ((InternalRow) rows.next()).copy();
        held.add(row);
        bytes = row instanceof UnsafeRow ? bytes + ((UnsafeRow) row).getSizeInBytes() : Long.MAX_VALUE;
      }
      if (bytes > tasks.most) {
        python = tasks.inner.createWriter(partition, task);
        python.writeAll(new Both(held.iterator(), rows));
        held.clear();
      }
    }

    public void write(Object row) throws IOException {
      throw new UnsupportedOperationException("rows are written all at once");
    }

    public WriterCommitMessage commit() throws IOException {
      return python == null ? new PythonWriterCommitMessage(message()) : python.commit();
    }

    public void abort() throws IOException {
      if (python != null) {
        python.abort();
      }
    }

    public void close() throws IOException {
      held.clear();
      if (python != null) {
        python.close();
      }
    }

    /** The pickled call `unsplit(query, run, stream, ...)`, which is what Python makes a message of. */
    private byte[] message() throws IOException {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      out.write(0x80); // protocol 3, which has bytes
      out.write(3);
      out.write("clance_memwal.spark.pieces\nunsplit\n(".getBytes(StandardCharsets.US_ASCII));
      text(out, TaskContext.get().getLocalProperty("sql.streaming.queryId"));
      text(out, TaskContext.get().getLocalProperty("spark.jobGroup.id"));
      if (!held.isEmpty()) {
        scala.collection.Iterator rows = scala.jdk.javaapi.CollectionConverters.asScala(held.iterator());
        scala.collection.Iterator streams =
            new ArrowConverters.ArrowBatchWithSchemaIterator(
                rows, tasks.schema, Long.MAX_VALUE, Long.MAX_VALUE, tasks.zone, true, false, TaskContext.get());
        while (streams.hasNext()) {
          sized(out, 'B', (byte[]) streams.next());
        }
      }
      out.write("tR.".getBytes(StandardCharsets.US_ASCII));
      return out.toByteArray();
    }

    private static void text(ByteArrayOutputStream out, String value) throws IOException {
      if (value == null) {
        out.write('N');
      } else {
        sized(out, 'X', value.getBytes(StandardCharsets.UTF_8));
      }
    }

    private static void sized(ByteArrayOutputStream out, int kind, byte[] value) throws IOException {
      out.write(kind);
      for (int shift = 0; shift < 32; shift += 8) {
        out.write(value.length >>> shift & 0xff);
      }
      out.write(value);
    }
  }

  /** The rows of both, one after the other. */
  private static final class Both implements Iterator<InternalRow> {
    private final Iterator<InternalRow> first;
    private final Iterator<InternalRow> then;

    Both(Iterator<InternalRow> first, Iterator<InternalRow> then) {
      this.first = first;
      this.then = then;
    }

    public boolean hasNext() {
      return first.hasNext() || then.hasNext();
    }

    public Object next() {
      return first.hasNext() ? first.next() : then.next();
    }
  }
}
