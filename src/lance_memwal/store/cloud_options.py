"""What a URI and Lance's storage options say about a bucket: where it is, and what obstore is told.

Owns `CloudTarget`. Invariants:

1. Options go to obstore under the names that they have: it knows every spelling of a name, it takes what the options do not
   say from the environment, and it refuses what it does not know. Only what Lance alone knows (its own retries and pace,
   its formats) is left out.
2. The same option under two names must have one value.
3. Conditional puts stay on and obstore's own retries stay off, whatever the options say: a hidden retry would make a
   lost acknowledgement look like somebody else's object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from lance_memwal.errors import InvalidInputError

__all__ = ["CloudTarget", "parse_target"]

_DEFAULTS = {"connect_timeout": "10s", "timeout": "60s"}
_ONLY_LANCE = re.compile(
    r"(client_(max_retries|retry_timeout)|download_retry_count|expires_at_millis|refresh_offset_millis|use_opendal"
    r"|(lance|new_table)_\w+)$"
)


@dataclass(frozen=True, slots=True)
class _Service:
    """The prefixes that names may have, what Lance calls otherwise than obstore, and what stands whatever is asked for."""

    scheme: str
    prefixes: tuple[str, ...]
    forced: Mapping[str, str]
    renamed: Mapping[str, str]

    def short(self, option: str) -> str:
        """The name of an option without case and prefix."""
        name = option.lower()
        found = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        return name.removeprefix(found)


_NONE: Mapping[str, str] = MappingProxyType({})
# One path is one DELETE: not every service that speaks S3 has the bulk request.
_S3 = _Service("s3", ("aws_",), MappingProxyType({"conditional_put": "etag", "disable_bulk_delete": "true"}), _NONE)
_AZURE = _Service("az", ("azure_storage_", "azure_"), _NONE, _NONE)
_GCS = _Service("gs", ("google_",), _NONE, MappingProxyType({"storage_token": "bearer_token"}))
_SERVICES = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfss": _AZURE}


@dataclass(frozen=True, slots=True, repr=False)
class CloudTarget:
    """One bucket (or container), the path below it, what tells it from every other, and all that a client must be told.

    `key` has no secret in it.
    """

    scheme: str
    bucket: str
    prefix: str
    key: str
    config: tuple[tuple[str, str], ...]


def parse_target(uri: str, options: Mapping[str, str]) -> CloudTarget:
    """What `uri` and Lance's `options` say about where to go and how."""
    parts = urlsplit(uri)
    service = _SERVICES[parts.scheme]
    config = _unique(service, options)
    bucket = parts.netloc
    given = {service.short(name): value for name, value in config.items()}
    if parts.scheme == "abfss":
        bucket, _, host = parts.netloc.rpartition("@")
        if "account_name" not in given:
            config["account_name"] = given["account_name"] = host.partition(".")[0]
    if not bucket or "@" in bucket or ":" in bucket:
        raise InvalidInputError(f"a {parts.scheme}:// URI must begin with the name of a bucket or container")
    if service is _S3 and bucket.endswith("--x-s3") and "s3_express" not in given:
        config["s3_express"] = "true"
    path = unquote(parts.path).strip("/")
    if path and any(name in ("", ".", "..") for name in path.split("/")):
        raise InvalidInputError(f"the path of a {parts.scheme}:// URI must be made of names, not {path!r}")
    if "#" in uri:
        raise InvalidInputError(f"a {parts.scheme}:// URI has no fragment: write %23 for a # in a name")
    return CloudTarget(
        scheme=service.scheme,
        bucket=bucket,
        prefix=path,
        key=_key(f"{service.scheme}://{bucket}/{path}".rstrip("/"), given),
        config=tuple(sorted(config.items())),
    )


def _unique(service: _Service, options: Mapping[str, str]) -> dict[str, str]:
    """The options for obstore, each under one name, with ours."""
    config: dict[str, str] = {}
    names: dict[str, str] = {}
    for option, value in options.items():
        short = service.short(option)
        if short in service.forced or _ONLY_LANCE.match(short):
            continue
        name = names.setdefault(short, service.renamed.get(short, option))
        if config.setdefault(name, value) != value:
            raise InvalidInputError(f"storage option {option!r} is given twice, with different values")
    for name, value in _DEFAULTS.items():
        if name not in names and not any(f"{prefix}{name}".upper() in os.environ for prefix in service.prefixes):
            config[name] = value
    return {**config, **service.forced}


def _key(place: str, given: Mapping[str, str]) -> str:
    """`place`, and whose it is."""
    endpoint = given.get("endpoint") or given.get("endpoint_url") or given.get("base_url")
    host = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint else ""
    where = "/".join(part for part in (host, given.get("account_name", "")) if part)
    return f"{place} ({where})" if where else place
