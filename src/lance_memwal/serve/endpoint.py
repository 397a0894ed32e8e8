"""Where an owner listens, and whom its callers trust.

Owns `Endpoint` and the variables that make one. Invariants:

1. Without any of them an owner listens on loopback, for the processes of its own host.
2. An owner listens on a given address with TLS and with a given token only: a certificate, its key and
   `LANCE_MEMWAL_TOKEN` are needed, or nothing listens.
3. A caller goes to another host with TLS only, and trusts what `LANCE_MEMWAL_TLS_CA` signed, or, without it, what this
   system trusts.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass

from lance_memwal.arguments import digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.serve.runtime import TOKEN_VARIABLE, is_token_given

HOST_VARIABLE = "LANCE_MEMWAL_HOST"
PORT_VARIABLE = "LANCE_MEMWAL_PORT"
CERT_VARIABLE = "LANCE_MEMWAL_TLS_CERT"
KEY_VARIABLE = "LANCE_MEMWAL_TLS_KEY"
CA_VARIABLE = "LANCE_MEMWAL_TLS_CA"
_LOOPBACK = "127.0.0.1"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]"
_NEAR = re.compile(r"grpc\+tcp://127\.0\.0\.1:[0-9]{1,5}")
_FAR = re.compile(rf"grpc\+tls://({_HOST}):([0-9]{{1,5}})")
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """Where this process listens when it owns a shard; port 0 is any free one. It does not print: it holds a key."""

    host: str = _LOOPBACK
    port: int = 0
    certificate: bytes | None = None
    key: bytes | None = None

    def address(self, port: int) -> str:
        """How callers reach it, on the port that it got."""
        return f"grpc+{'tcp' if self.certificate is None else 'tls'}://{self.host}:{port}"


def own_endpoint() -> Endpoint:
    """Where this process shall listen; `InvalidInputError` if that is not safe, or not whole."""
    host, port = os.environ.get(HOST_VARIABLE, ""), os.environ.get(PORT_VARIABLE, "")
    given = {name: os.environ.get(name, "") for name in (CERT_VARIABLE, KEY_VARIABLE)}
    number = digits_of(port or "0", most=(1 << 16) - 1)
    if number is None:
        raise InvalidInputError(f"{PORT_VARIABLE} must be a port, 0 to 65535")
    if not host:
        if any(given.values()):
            raise InvalidInputError(f"{CERT_VARIABLE} and {KEY_VARIABLE} are for owners with a {HOST_VARIABLE}")
        return Endpoint(port=number)
    if not re.fullmatch(_HOST, host) or is_every_address(host.strip("[]")):
        raise InvalidInputError(f"{HOST_VARIABLE} must be the name or the address by which others reach this host")
    if not all(given.values()) or not is_token_given():
        needed = ", ".join([*given, TOKEN_VARIABLE])
        raise InvalidInputError(f"an owner listens for other hosts with TLS and a given token only: set {needed}")
    return Endpoint(host, number, *map(_read, given, given.values()))


def is_every_address(host: str) -> bool:
    """Whether a host is a spelling of all addresses of this machine; a name is none."""
    try:
        address = ipaddress.ip_address(socket.inet_aton(host) if re.fullmatch("[0-9a-fA-Fx.]+", host) else host)
    except (OSError, ValueError):
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_unspecified


def trusted_roots() -> bytes | None:
    """The certificates that sign owners on other hosts; None: those that this system trusts."""
    path = os.environ.get(CA_VARIABLE, "")
    return _read(CA_VARIABLE, path) if path else None


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidInputError(f"{name}: {path} cannot be read: {error.strerror}") from error


def is_of_this_host(address: str) -> bool:
    """Whether an address is a port of this host that nobody reaches from outside."""
    return _NEAR.fullmatch(address) is not None


def is_for_other_hosts(address: str) -> bool:
    """Whether an address may be on another host; it is asked with TLS."""
    return _FAR.fullmatch(address) is not None


def is_distrusted(address: str) -> bool:
    """Whether somebody answers there with a certificate that we do not trust: that is no owner that is gone."""
    found = _FAR.fullmatch(address)
    if found is None:
        return False
    host, roots = found[1].strip("[]"), trusted_roots()
    try:
        context = ssl.create_default_context(cadata=None if roots is None else roots.decode())
        plain = socket.create_connection((host, int(found[2])), _CONNECT_SECONDS)
        with plain, context.wrap_socket(plain, server_hostname=host):
            return False
    except ssl.SSLCertVerificationError:
        return True
    except (OSError, ValueError):
        return False
