"""Retrieval for a language model over documents that change: what was written a moment ago is found, what was deleted is not.

The "model" turns words into numbers by hashing, so that the example runs anywhere; put your own in its place.

Run: `python examples/rag.py`
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_memwal as mw

DIMENSION = 64
SCHEMA = pa.schema(
    [
        pa.field("chunk_id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), DIMENSION)),
    ]
)
HANDBOOK = [
    "A refund is paid within fourteen days after the goods came back.",
    "Orders above fifty euros are sent without a fee for delivery.",
    "The warehouse is closed on Sundays and on public holidays.",
]


def embed(text: str) -> list[float]:
    """A vector of a text: its words, hashed into places, with length one."""
    vector = np.zeros(DIMENSION, np.float32)
    for word in text.lower().strip(".?").split():
        vector[zlib.crc32(word.encode()) % DIMENSION] += 1
    return [float(value) for value in vector / max(float(np.linalg.norm(vector)), 1e-9)]


def chunks(texts: list[str], first: int = 0) -> list[dict[str, object]]:
    """The parts of a document as rows, numbered from `first` on."""
    return [{"chunk_id": number, "text": text, "vector": embed(text)} for number, text in enumerate(texts, first)]


def prompt(table: mw.Table, question: str) -> str:
    """What a language model would be asked: the question below the best two texts, by meaning and by words."""
    found = table.search(vector=embed(question), text=question, k=2, columns=["text"])
    return "\n".join([*found["text"].to_pylist(), f"Question: {question}"])


def main() -> None:
    """Ask, change a document, and ask again."""
    with tempfile.TemporaryDirectory() as directory:
        table = mw.create_table(str(Path(directory) / "chunks"), SCHEMA, primary_key="chunk_id")
        with table.writer() as writer:
            writer.put(chunks(HANDBOOK))
            before = prompt(table, "When is a refund paid?")
            print(before, end="\n\n")
            writer.put(chunks(["A refund is paid within three days."]))  # replaces the first part
            writer.delete([2])
            after = prompt(table, "When is a refund paid?")
            print(after)
            gone = prompt(table, "Is the warehouse closed on Sundays?")
        if "fourteen days" not in before or "three days" not in after or "fourteen days" in after or "public" in gone:
            raise SystemExit("the prompts are not what the documents say")


if __name__ == "__main__":
    main()
