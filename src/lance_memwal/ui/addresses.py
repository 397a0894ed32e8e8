"""Where a server of this library listens for HTTP, and under which names it answers: the page and the exporter alike.

Owns `bind`, `hosts_of`, `Names`, how many are answered at once, and the warning about addresses that others reach. Invariants:

1. The socket is bound to one address, never to all, and before anybody is told of it: no other program can have it.
2. `Host` is a name that we listen under, given once: a name of somebody else that leads here by DNS is refused.
3. `Origin`, if it is given, is ours. There is no CORS.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from typing import Final

from lance_memwal.errors import InvalidInputError
from lance_memwal.serve.endpoint import is_every_address
from lance_memwal.ui.answers import Refusal

__all__ = ["MOST_CONNECTIONS", "REACHED_BY_OTHERS", "Names", "bind", "hosts_of", "is_loopback"]

REACHED_BY_OTHERS: Final = "other machines can reach this address, and nothing is encrypted: an SSH tunnel is safer"
MOST_CONNECTIONS: Final = 64
_LOCAL_NAME: Final = "localhost"
_DEFAULT_PORT: Final = 80  # browsers leave it out


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == _LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to the one address; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        listening.close()
        raise InvalidInputError(
            f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}; name another address or port"
        ) from None
    if is_every_address(listening.getsockname()[0]):  # asked of the socket: a host has many spellings
        listening.close()
        raise InvalidInputError("name the one address that others ask for, since they are refused under any other")
    return listening


def hosts_of(host: str, port: int) -> list[str]:
    """The names with ports under which we answer, the one to tell first."""
    given = [host, _LOCAL_NAME, "127.0.0.1", "::1"] if is_loopback(host) else [host]
    names = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(given)]
    return [f"{name}:{port}" for name in names] + (names if port == _DEFAULT_PORT else [])


class Names:
    """The names with ports under which a server answers, as browsers send them."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Raise `Refusal` unless these values of `Host` and `Origin` are of somebody who asked for us."""
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise Refusal(421, "this server answers under its own address only: use the one that memwal printed")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise Refusal(403, "another site asked: only the page itself may")
