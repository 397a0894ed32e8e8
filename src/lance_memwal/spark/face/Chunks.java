package io.memwal.spark;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;

/**
 * The messages of all chunks of one task, as one message of a class that Spark has.
 *
 * <p>Over Connect the thread that receives the result of a task does not know our classes. Form: a number of messages, then the
 * length and the bytes of each.
 */
final class Chunks {
  private Chunks() {}

  static WriterCommitMessage joined(List<WriterCommitMessage> parts) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    out.writeInt(parts.size());
    for (int i = 0; i < parts.size(); i++) {
      byte[] pickled = ((PythonWriterCommitMessage) parts.get(i)).pickledMessage();
      out.writeInt(pickled.length);
      out.write(pickled);
    }
    return new PythonWriterCommitMessage(bytes.toByteArray());
  }

  /** The messages of all chunks of all tasks, in order. */
  static WriterCommitMessage[] of(WriterCommitMessage[] tasks) {
    List<WriterCommitMessage> all = new ArrayList<WriterCommitMessage>();
    for (int i = 0; i < tasks.length; i++) {
      if (tasks[i] != null) {
        add(all, ((PythonWriterCommitMessage) tasks[i]).pickledMessage());
      }
    }
    return (WriterCommitMessage[]) all.toArray(new WriterCommitMessage[all.size()]);
  }

  private static void add(List<WriterCommitMessage> to, byte[] joined) {
    try {
      DataInputStream in = new DataInputStream(new ByteArrayInputStream(joined));
      int count = in.readInt();
      for (int i = 0; i < count; i++) {
        byte[] pickled = new byte[in.readInt()];
        in.readFully(pickled);
        to.add(new PythonWriterCommitMessage(pickled));
      }
    } catch (IOException error) {
      throw new IllegalStateException("the message of a task is damaged: " + error.getMessage());
    }
  }
}
