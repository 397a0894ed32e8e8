"""Lance's storage options in the words of obstore.

Owns the names of options per service. Invariants:

1. Names match in any case and with or without their service's prefix, as Lance takes them; what only Lance knows (its
   own retries, its formats) is ignored.
2. The same option under two names must have one value.
3. Conditional puts stay on and obstore's own retries stay off, whatever the options say: a hidden retry would make a
   lost acknowledgement look like somebody else's object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from lance_memwal.errors import InvalidInputError

__all__ = ["CloudTarget", "parse_target"]

_CLIENT_DEFAULTS = {"connect_timeout": "10s", "timeout": "60s"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLIENT = _words(
    "allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_keep_alive_interval"
    " http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size http2_only pool_idle_timeout"
    " pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url randomize_addresses read_timeout"
    " root_certificate timeout user_agent"
)


@dataclass(frozen=True, slots=True)
class _Service:
    """What one service calls its options: prefixes that may be left out, other names, and the names obstore takes."""

    scheme: str
    prefixes: tuple[str, ...]
    aliases: Mapping[str, str]
    names: frozenset[str]
    forced: Mapping[str, str]


_S3 = _Service(
    scheme="s3",
    prefixes=("aws_",),
    aliases=MappingProxyType({"endpoint_url": "endpoint", "token": "session_token"}),
    names=_words(
        "access_key_id secret_access_key session_token region default_region endpoint checksum_algorithm"
        " container_credentials_relative_uri container_credentials_full_uri container_authorization_token_file"
        " disable_tagging imdsv1_fallback metadata_endpoint request_payer role_arn role_session_name s3_express"
        " server_side_encryption skip_signature sse_bucket_key_enabled sse_customer_key_base64 sse_kms_key_id"
        " unsigned_payload virtual_hosted_style_request web_identity_token_file"
    ),
    # One path is one DELETE: not every service that speaks S3 has the bulk request.
    forced=MappingProxyType({"conditional_put": "etag", "disable_bulk_delete": "true"}),
)
_AZURE = _Service(
    scheme="az",
    prefixes=("azure_storage_", "azure_"),
    aliases=MappingProxyType(
        {
            "access_key": "account_key",
            "master_key": "account_key",
            "sas_token": "sas_key",
            "bearer_token": "token",
            "authority_id": "tenant_id",
            "identity_endpoint": "msi_endpoint",
            "object_store_use_emulator": "use_emulator",
        }
    ),
    names=_words(
        "account_name account_key client_id client_secret credential_type tenant_id authority_host sas_key token"
        " use_emulator use_fabric_endpoint encryption_key endpoint msi_endpoint object_id msi_resource_id"
        " federated_token_file use_azure_cli skip_signature disable_tagging fabric_token_service_url"
        " fabric_workload_host fabric_session_token fabric_cluster_identifier"
    ),
    forced=MappingProxyType({}),
)
_GCS = _Service(
    scheme="gs",
    prefixes=("google_",),
    aliases=MappingProxyType({"service_account_path": "service_account", "storage_token": "bearer_token"}),
    names=_words("service_account service_account_key base_url bearer_token application_credentials skip_signature"),
    forced=MappingProxyType({}),
)
_SERVICES = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfss": _AZURE}


@dataclass(frozen=True, slots=True, repr=False)
class CloudTarget:
    """One bucket (or container), the path below it, and all that a client of it must be told."""

    scheme: str
    bucket: str
    prefix: str
    config: tuple[tuple[str, str], ...]
    client_options: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """What tells this place from every other, with no secret in it."""
        config = dict(self.config)
        place = f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")
        endpoint = config.get("endpoint") or config.get("base_url")
        host = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint else ""
        where = "/".join(part for part in (host, config.get("account_name", "")) if part)
        return f"{place} ({where})" if where else place


def parse_target(uri: str, options: Mapping[str, str]) -> CloudTarget:
    """What `uri` and Lance's `options` say about where to go and how."""
    parts = urlsplit(uri)
    service = _SERVICES[parts.scheme]
    config, client_options = _split(service, options)
    bucket = parts.netloc
    if parts.scheme == "abfss":
        bucket, _, host = parts.netloc.rpartition("@")
        config.setdefault("account_name", host.partition(".")[0])
    if not bucket or "@" in bucket or ":" in bucket:
        raise InvalidInputError(f"a {parts.scheme}:// URI must begin with the name of a bucket or container")
    if service is _S3 and bucket.endswith("--x-s3"):
        config.setdefault("s3_express", "true")
    path = unquote(parts.path).strip("/")
    if path and any(name in ("", ".", "..") for name in path.split("/")):
        raise InvalidInputError(f"the path of a {parts.scheme}:// URI must be made of names, not {path!r}")
    if "#" in uri:
        raise InvalidInputError(f"a {parts.scheme}:// URI has no fragment: write %23 for a # in a name")
    return CloudTarget(
        scheme=service.scheme,
        bucket=bucket,
        prefix=path,
        config=tuple(sorted({**config, **service.forced}.items())),
        client_options=tuple(sorted({**_CLIENT_DEFAULTS, **client_options}.items())),
    )


def _split(service: _Service, options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the service and those of its HTTP client, under obstore's names."""
    config: dict[str, str] = {}
    client_options: dict[str, str] = {}
    for option, value in options.items():
        name = _short_name(service, option)
        target = config if name in service.names else client_options if name in _CLIENT else None
        if target is None:
            continue
        if target.setdefault(name, value) != value:
            raise InvalidInputError(f"storage option {option!r} is given twice, with different values")
    return config, client_options


def _short_name(service: _Service, option: str) -> str:
    name = option.lower()
    for prefix in service.prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    return service.aliases.get(name, name)
