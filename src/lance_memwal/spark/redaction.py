"""Which options and settings Spark must not show: those that hold credentials.

Owns `SETTING`, for whoever starts Spark, and `hide_credentials`, for a session that runs. Spark prints options and settings in
plans, on its pages, in its event log and for `SET`, and hides those whose names it takes for secrets: `secret`, `token` and a
few more, which `aws_access_key_id` and the keys of Azure and Google are not. Invariants:

1. All storage options are hidden, whatever they are called: `storage.*`, as options of a table that Spark has in its own
   catalog, and as settings of a catalog (`spark.sql.catalog.*.storage.*`).
2. What a user hides besides stays hidden.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["SETTING", "hide_credentials"]

_OURS: Final = r"^(option[.])?storage[.]|[.]catalog[.][^.]+[.]storage[.]"
_OF_SESSIONS: Final = "spark.sql.redaction.options.regex"
SETTING: Final = {"spark.redaction.regex": rf"(?i)secret|password|token|access[.]?key|{_OURS}"}  # Spark's own, and ours


def hide_credentials(spark: Any) -> None:
    """Let the plans of this session not show storage options; what is fixed when Spark starts is in `SETTING`."""
    given = spark.conf.get(_OF_SESSIONS)
    if _OURS not in given:
        spark.conf.set(_OF_SESSIONS, f"{given}|{_OURS}")
