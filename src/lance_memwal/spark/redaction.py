"""Which options and settings Spark must not show: those that hold credentials.

Owns `settings_that_hide`, for whoever starts Spark, and `hide_credentials`, for a session that runs. Spark prints options and
settings in plans, on its pages, in its event log and for `SET`, and hides those whose names it takes for secrets: `secret`,
`token` and a few more, which `aws_access_key_id` and the keys of Azure and Google are not. Invariants:

1. All storage options are hidden, whatever they are called: `storage.*`, as options of a table that Spark has in its own
   catalog, and as settings of a catalog (`spark.sql.catalog.*.storage.*`).
2. What a user hides besides stays hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["hide_credentials", "settings_that_hide"]

_OURS: Final = r"^(option[.])?storage[.]|[.]catalog[.][^.]+[.]storage[.]"
_OF_SESSIONS: Final = "spark.sql.redaction.options.regex"
_OF_SPARK: Final = "spark.redaction.regex"
_SPARKS_OWN: Final = "(?i)secret|password|token|access[.]?key"


def settings_that_hide(conf: Mapping[str, Any]) -> dict[str, str]:
    """What Spark must be started with: it hides what `conf` names, or what Spark hides by itself, and ours besides."""
    return {_OF_SPARK: f"(?:{conf.get(_OF_SPARK, _SPARKS_OWN)})|(?i){_OURS}"}


def hide_credentials(spark: Any) -> None:
    """Let the plans of this session not show storage options; what is fixed when Spark starts is in `settings_that_hide`."""
    given = spark.conf.get(_OF_SESSIONS)
    if _OURS not in given:
        spark.conf.set(_OF_SESSIONS, f"{given}|{_OURS}")
