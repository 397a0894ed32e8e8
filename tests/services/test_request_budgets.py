"""What each operation costs in requests, ours and Lance's, counted by an S3 service: a budget that is passed fails here.

Who changes a budget says why in the commit; `docs/cost.md` has the whole table.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.store.metering import Recorder

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
Requests = Callable[[str], Counter[tuple[str, str]]]
pytestmark = pytest.mark.xdist_group("s3")

# (all requests, requests of ours)
OPEN_NEW = (9, 7)
OPEN_AGAIN = (18, 15)  # of a shard that was closed: nothing is replayed
PUT = (1, 1)
GET_HERE = (3, 2)
FLUSH = (22, 14)
CLOSE = (3, 3)
COMPACT = (54, 40)
SCAN_COLD = (24, 14)
SCAN_AGAIN = (8, 6)
GET_AGAIN = (8, 6)


def ours(metrics: Recorder) -> int:
    """The requests of this library; what only concerns disks is none."""
    return sum(s.count for kind, s in metrics.snapshot().items() if kind not in ("sync_tree", "make_directory"))


class Budgets:
    def __init__(self, uri: str, options: dict[str, str], requests: Requests) -> None:
        self.uri, self._requests = uri, requests
        mw.create_table(uri, SCHEMA, primary_key="id", storage_options=options)
        self.table = mw.open_table(uri, storage_options=options)

    @contextmanager
    def within(self, budget: tuple[int, int]) -> Iterator[None]:
        """What happens inside costs at most so many requests, in all and of ours."""
        before, own = self._requests(self.uri), ours(self.table.location.metrics)
        yield
        made, mine = self._requests(self.uri) - before, ours(self.table.location.metrics) - own
        assert mine <= budget[1], f"{mine} requests of ours"
        assert made.total() <= budget[0], made


@pytest.fixture
def budgets(s3_table: tuple[str, dict[str, str]], s3_requests: Requests) -> Budgets:
    return Budgets(*s3_table, s3_requests)


def test_no_operation_takes_more_requests_than_its_budget(budgets: Budgets) -> None:
    table, within = budgets.table, budgets.within
    writer = table.writer(compaction=None)
    with within((OPEN_NEW[0] + PUT[0], OPEN_NEW[1] + PUT[1])):
        writer.put([{"id": 1, "v": "a"}])
    with within(PUT):
        writer.put([{"id": n, "v": "b"} for n in range(500)])
    writer.get(1)
    with within(GET_HERE):
        assert writer.get(1) == {"id": 1, "v": "b"}
    with within(FLUSH):
        writer.flush()
    with within(CLOSE):
        writer.close()
    with within((OPEN_AGAIN[0] + PUT[0], OPEN_AGAIN[1] + PUT[1])):
        writer = table.writer(compaction=None)
        writer.put([{"id": 2, "v": "c"}])
    writer.abort()
    CACHE.clear()
    with within(SCAN_COLD):
        assert table.scan().to_table().num_rows == 500
    with within(SCAN_AGAIN):
        table.scan().to_table()
    with within(GET_AGAIN):
        assert table.get(2) == {"id": 2, "v": "c"}
    with within(COMPACT):
        table.compact()
