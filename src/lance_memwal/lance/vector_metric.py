"""The metric of a vector index that Lance built, and whether it holds the vectors as they are.

Owns `vector_metric` and `is_compressed`. The description of an index names the metric; that of an index of an older Lance does
not, then its statistics do, for which Lance loads the index and warns about its size.
"""

from __future__ import annotations

import lance


def vector_metric(dataset: lance.LanceDataset, name: str) -> str | None:
    """The metric of the vector index `name`, in lower case; None if nothing says it."""
    for described in dataset.describe_indices():
        if described.name == name and "metric_type" in described.details:
            return str(described.details["metric_type"]).lower()
    segments = dataset.stats.index_stats(name).get("indices") or [{}]
    metric = segments[0].get("metric_type")
    return None if metric is None else str(metric).lower()


def is_compressed(dataset: lance.LanceDataset, name: str) -> bool:
    """Whether the vector index `name` ranks by something shorter than the vectors; True where nothing says it."""
    kinds = [str(described.index_type) for described in dataset.describe_indices() if described.name == name]
    return not kinds or not all(kind.upper().endswith("FLAT") for kind in kinds)
