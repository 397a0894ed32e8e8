package io.memwal.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The messages of all chunks of one task. */
final class Chunks implements WriterCommitMessage {
  private final WriterCommitMessage[] parts;

  Chunks(WriterCommitMessage[] parts) {
    this.parts = parts;
  }

  /** The messages of all tasks, in order. */
  static WriterCommitMessage[] of(WriterCommitMessage[] tasks) {
    List<WriterCommitMessage> all = new ArrayList<WriterCommitMessage>();
    for (int i = 0; i < tasks.length; i++) {
      if (tasks[i] instanceof Chunks) {
        WriterCommitMessage[] parts = ((Chunks) tasks[i]).parts;
        for (int j = 0; j < parts.length; j++) {
          all.add(parts[j]);
        }
      }
    }
    return (WriterCommitMessage[]) all.toArray(new WriterCommitMessage[all.size()]);
  }
}
