"""Lines of JSON that end the process of Arrow's reader, and many more, made at random: each is read, or refused.

Prints what went wrong: an answer that is not the one of Python's own reader, or the last file before the process ended.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any, Final

from lance_memwal.cli import files
from lance_memwal.errors import InvalidInputError

MARK: Final = b"\xef\xbb\xbf"
LONG = b"x" * ((1 << 20) + 10)
DEEP = 100_000
KNOWN = [
    MARK + b"null\n",
    MARK + MARK + b"null",
    MARK[:1] + b"null\n",
    MARK[1:] + b"null\n",
    b'{"a":1}\n' + MARK + b"null\n",
    b'{"a":"' + LONG + b'","b":' + b"[" * DEEP + b'"z"' + b"]" * DEEP + b"}\n",
    b'{"a":"' + LONG + b'","k":1,"[[":1}\nnull\n',
    b'{"a":' + (b"[" * 900 + b'"' + b"]" * 900 + b'",') * 60 + b"1" + b"]" * 54_000 + b"}\n",
    b'{"a":' + (b"[" * 900 + b'"\\"' + b"]" * 900 + b'",') * 60 + b"1" + b"]" * 54_000 + b"}\n",
    b'{"a":"' + b"[" * 1001 + b'"}\n"' + b'\\"' * 100_000 + b"\n",  # once took half a minute
    b'{"a":[\nnull',
    b'{"a":1}null',
    b"\n" * (1 << 20) + MARK + b"null\n",
    b"x" * (20 << 20),
]
SCRAPS = [
    b'"',
    b"\\",
    b"\n",
    b"null",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    MARK,
    MARK[:1],
    b" ",
    b"\r",
    b"\x00",
    b'"a":',
    b"1",
]


def main() -> None:
    """Read all of them; the argument is how many are made."""
    path = Path(sys.argv[1])
    for data in KNOWN:
        assert read(path, data) is None, data[:40]
    chance = random.Random(7)
    files._BLOCK_BYTES = 64  # many blocks in small files
    for _ in range(int(sys.argv[2])):
        data = made(chance)
        found, meant = read(path, data), plain(data)
        assert found is None or meant is None or found == meant, (data, found, meant)


def read(path: Path, data: bytes) -> list[dict[str, Any]] | None:
    """The rows of the file; None if it is refused."""
    path.write_bytes(data)
    try:
        return [row for batch in files.DataFile(path).batches(10) for row in batch.to_pylist()]
    except (InvalidInputError, UnicodeDecodeError):  # the latter is refused when it is put
        return None


def plain(data: bytes) -> list[dict[str, Any]] | None:
    """The rows by Python's own reader; None if it does not take them, or takes more than Arrow does."""
    try:
        rows = [json.loads(line) for line in data.removeprefix(MARK).decode().split("\n") if line.strip()]
    except ValueError:
        return None
    columns = {name: None for row in rows if isinstance(row, dict) for name in row}
    return [{**columns, **row} for row in rows] if all(isinstance(row, dict) for row in rows) else None


def made(chance: random.Random) -> bytes:
    """Lines of rows that fit each other, some of them broken."""
    lines = [
        json.dumps(
            {"a": chance.randrange(9), "s": "".join(chance.choices('a"[]{}\\,:é', k=chance.randrange(60)))}
        ).encode()
        for _ in range(chance.randrange(6))
    ]
    data = chance.choice([b"", MARK]) + b"\n".join(lines) + chance.choice([b"", b"\n", b"\r\n"])
    for _ in range(chance.choice([0, 0, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        data = data[:at] + b"".join(chance.choices(SCRAPS, k=chance.randrange(4))) + data[at + chance.randrange(3) :]
    return data


if __name__ == "__main__":
    main()
