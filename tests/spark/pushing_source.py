"""A source that pushes filters down, to see whether Spark still mixes up its plans."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter
from pyspark.sql.types import StructType


class PushingReader(DataSourceReader):
    def __init__(self) -> None:
        self.category: Any = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for item in filters:
            if isinstance(item, EqualTo) and item.attribute == ("cat",):
                self.category = item.value
            else:
                yield item

    def read(self, partition: Any) -> Iterator[tuple[int, int]]:
        return ((i, i % 10) for i in range(1000) if self.category is None or i % 10 == self.category)


class PushingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushing_canary"

    def schema(self) -> str:
        return "id long, cat long"

    def reader(self, schema: StructType) -> PushingReader:
        return PushingReader()
