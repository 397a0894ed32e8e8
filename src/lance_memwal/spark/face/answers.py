"""How Python answers the JVM: a JSON object in the metadata of a schema with one column.

Owns the form of answers. A refusal (`InvalidInputError`) and a failure (any other error of ours) are answers, too, with their
words and without a stack; everything else is Spark's to report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as st

from lance_memwal.errors import InvalidInputError, MemWalError

_ANSWER = "memwal"  # the Java side reads it by this name


def answered(answer: Mapping[str, Any]) -> st.StructType:
    """A schema that carries `answer`."""
    return st.StructType([st.StructField("answer", st.StringType(), metadata={_ANSWER: json.dumps(answer)})])


def refused(error: MemWalError) -> st.StructType:
    """A schema that carries an error of ours."""
    if isinstance(error, InvalidInputError):
        return answered({"refused": str(error)})
    return answered({"failed": f"{type(error).__name__}: {error}"})
