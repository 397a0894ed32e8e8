package io.memwal.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The writers in tasks of UPDATE, DELETE and MERGE: they collect a chunk of rows, then Python takes it. */
final class ChangeWriters implements DeltaWriterFactory {
  private static final int CHUNK_ROWS = 20000;

  private final DataWriterFactory inner;
  private final Shape shape;

  ChangeWriters(DataWriterFactory inner, Shape shape) {
    this.inner = inner;
    this.shape = shape;
  }

  public DeltaWriter<InternalRow> createWriter(final int partition, final long task) {
    return new ChangeWriter(inner, shape, partition, task);
  }

  private static final class ChangeWriter implements DeltaWriter<InternalRow> {
    private final DataWriterFactory inner;
    private final Shape shape;
    private final int partition;
    private final long task;
    private final List<InternalRow> held = new ArrayList<InternalRow>();
    private final List<WriterCommitMessage> messages = new ArrayList<WriterCommitMessage>();

    ChangeWriter(DataWriterFactory inner, Shape shape, int partition, long task) {
      this.inner = inner;
      this.shape = shape;
      this.partition = partition;
      this.task = task;
    }

    public void delete(Object metadata, Object id) throws IOException {
      add(shape.tombstone((InternalRow) id));
    }

    public void update(Object metadata, Object id, Object row) throws IOException {
      InternalRow before = shape.tombstone((InternalRow) id);
      InternalRow after = shape.row((InternalRow) row, Shape.UPDATE);
      if (!shape.isSameKey(before, after)) {
        after = shape.row((InternalRow) row, Shape.CHANGED_KEY);
      } else if (!shape.isSameId(before, after)) {
        add(before); // the row may move to another shard
      }
      add(after);
    }

    public void insert(Object row) throws IOException {
      add(shape.row((InternalRow) row, Shape.INSERT));
    }

    public void write(Object row) throws IOException {
      insert(row);
    }

    private void add(InternalRow row) throws IOException {
      held.add(row);
      if (held.size() >= CHUNK_ROWS) {
        hand();
      }
    }

    /** Let Python take the rows of one chunk; nothing becomes visible. */
    private void hand() throws IOException {
      DataWriter<InternalRow> writer = inner.createWriter(partition, task);
      try {
        writer.writeAll(held.iterator());
        messages.add(writer.commit());
      } finally {
        writer.close();
      }
      held.clear();
    }

    public WriterCommitMessage commit() throws IOException {
      if (!held.isEmpty()) {
        hand();
      }
      return Chunks.joined(messages);
    }

    public void abort() throws IOException {
      held.clear();
    }

    public void close() throws IOException {
      held.clear();
    }
  }
}
