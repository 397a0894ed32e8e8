"""Keys in few bytes, for plans that travel.

Owns `PackedKeys`. Integers are sorted, and only the steps from one to the next are kept; everything else is an Arrow stream.
Both are compressed. [1000, 1003, 1001] becomes the first key 1000 and the steps [1, 2], a byte each.
Invariant: what is unpacked has every key that was packed, once, in no order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.ipc_frames import stream_of
from lance_memwal.rows.keys import as_numbers

_CODEC = "zstd"
_NAME = "key"


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """A set of keys of one type. `first` is None where they are no integers."""

    kind: pa.DataType
    count: int
    first: int | None
    step_bytes: int
    data: bytes

    @classmethod
    def of(cls, keys: pa.Array) -> PackedKeys:
        """All of `keys`, some of which may be there twice."""
        numbers = as_numbers(keys) if pa.types.is_integer(keys.type) else None
        return cls._of_values(keys.unique()) if numbers is None or not len(numbers) else cls._of_numbers(keys, numbers)

    @classmethod
    def _of_numbers(cls, keys: pa.Array, numbers: npt.NDArray[np.generic]) -> PackedKeys:
        distinct = np.unique(numbers)
        wide = distinct.astype(np.uint64 if distinct.dtype.kind == "u" else np.int64).view(np.uint64)
        steps = np.diff(wide)  # modulo 2^64, so that the widest range is one, too
        narrow = steps.astype(np.min_scalar_type(int(steps.max()) if len(steps) else 0))
        data = pa.compress(narrow.tobytes(), codec=_CODEC, asbytes=True)
        return cls(keys.type, len(distinct), int(distinct[0]), narrow.dtype.itemsize, data)

    @classmethod
    def _of_values(cls, keys: pa.Array) -> PackedKeys:
        batch = pa.RecordBatch.from_arrays([keys], [_NAME])
        data = stream_of(batch.schema, [batch], compression=_CODEC)
        return cls(keys.type, len(keys), None, 0, data.to_pybytes())

    @property
    def size_bytes(self) -> int:
        """The bytes that travel."""
        return len(self.data)

    def unpack(self) -> pa.Array:
        """The keys."""
        if self.first is None:
            with pa.ipc.open_stream(self.data) as reader:
                return reader.read_all().column(_NAME).combine_chunks()
        size = (self.count - 1) * self.step_bytes
        raw = pa.decompress(self.data, decompressed_size=size, codec=_CODEC, asbytes=True) if size else b""
        steps = np.frombuffer(raw, dtype=f"u{self.step_bytes}").astype(np.uint64)
        wide = np.concatenate([np.array([self.first % (1 << 64)], np.uint64), steps]).cumsum(dtype=np.uint64)
        signed = pa.types.is_signed_integer(self.kind)
        return pa.array(wide.view(np.int64) if signed else wide).cast(self.kind)
