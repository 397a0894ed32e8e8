"""The sink with faults: failures and kills after the store put, dying tasks, and the transaction check switched off."""

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from lance_memwal import crash_points
from lance_memwal.log.transactions import TransactionMap
from lance_memwal.spark.data_source import MemWalSource
from lance_memwal.spark.pieces import Pieces
from lance_memwal.spark.sink import StreamSink

CHECK = TransactionMap.is_repeat


class FaultySink(StreamSink):
    """Fails every sixth time that an entry is on storage, in the way that `mode` says."""

    mode = ""
    directory = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Pieces:
        context = TaskContext.get()
        if "task" in self.mode and context is not None and context.attemptNumber() == 0 and self._turn("task") % 4 == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        crash_points.install(self._at)
        if "unchecked" in self.mode:
            TransactionMap.is_repeat = lambda self, txn: False  # type: ignore[method-assign]
        try:
            super().commit(messages, batchId)
        finally:
            crash_points.install(None)
            TransactionMap.is_repeat = CHECK  # type: ignore[method-assign]

    def _at(self, point: str) -> None:
        if point != "once.after_put" or self._turn("put") % 6 != 3:
            return
        if "kill" in self.mode:
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in self.mode:
            raise OSError("the answer of the store was lost")

    def _turn(self, kind: str) -> int:
        """How often this was reached, over all processes and threads: no number is given twice, and none left out."""
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                (Path(self.directory) / f"{kind}-{number}").touch(exist_ok=False)
                break
        return number


class FaultySource(MemWalSource):
    """`format("memwal_faulty")` with the options `faultMode` and `faultDir`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = dict(options)
        super().__init__({name: value for name, value in given.items() if not name.lower().startswith("fault")})
        lowered = {name.lower(): value for name, value in given.items()}
        self._mode, self._directory = lowered.get("faultmode", ""), lowered.get("faultdir", "")

    @classmethod
    def name(cls) -> str:
        return "memwal_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultySink:
        sink = FaultySink(self._plan(schema, overwrite))
        sink.mode, sink.directory = self._mode, self._directory
        return sink
