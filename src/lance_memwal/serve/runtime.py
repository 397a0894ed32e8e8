"""What the processes of one user on one host share: a private directory, the token, and locks.

Owns all three. Invariants:

1. The directory is the user's own, and nobody else's (0700); another one is refused. The token in it is a file of mode
   0600, created whole or not at all. It is never written anywhere else.
2. The token itself is never sent. A caller shows that it knows it, in a word that is good for one address; an owner shows
   it with every answer. So a stranger who listens where an owner was learns nothing, and cannot pass for one.
3. A token that is given in `LANCE_MEMWAL_TOKEN` is the one that counts.
4. A lock is the kernel's: it is free once its holder is dead. It only saves work; whoever does not get it in time goes
   on without it, since epochs decide who owns what.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.process.deadline import Deadline

TOKEN_VARIABLE = "LANCE_MEMWAL_TOKEN"  # noqa: S105 (its name)
NONCE_BYTES, PROOF_BYTES = 16, 32
_LEAST_TOKEN_BYTES = 16
_TOKEN_BYTES = 32
_LOOK_SECONDS = 0.01
_PRIVATE = stat.S_IRWXG | stat.S_IRWXO


class Secret:
    """What the token lets its owner say; it does not print."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        self._key = text.encode()

    def word_for(self, address: str) -> bytes:
        """What a caller says to the owner at this address."""
        return hmac.digest(self._key, b"caller " + address.encode(), "sha256").hex().encode()

    def proof_of(self, nonce: bytes, answer: bytes) -> bytes:
        """What an owner puts before its answer to a call with this nonce."""
        return hmac.digest(self._key, b"owner " + nonce + answer, "sha256")


def is_token_given() -> bool:
    """Whether the token is one that processes on other hosts may have, too."""
    return bool(os.environ.get(TOKEN_VARIABLE))


def token(clock: Clock = SYSTEM_CLOCK) -> str:
    """The secret that callers must know."""
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given:
        if len(given) < _LEAST_TOKEN_BYTES or not given.isascii() or not given.isprintable():
            raise InvalidInputError(
                f"{TOKEN_VARIABLE} must have at least {_LEAST_TOKEN_BYTES} printable ASCII characters"
            )
        return given
    path = f"{_directory()}/token"
    found = _read_private(path)
    if found is None:
        _create_private(path, clock.token_hex(_TOKEN_BYTES), clock)
        found = _read_private(path)
    if not found:
        raise InvalidInputError(f"{path} holds no token: remove it")
    return found


@contextmanager
def host_lock(name: str, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Have the lock of this name on this host; without it after so many seconds."""
    deadline = Deadline(clock, seconds)
    fd = os.open(f"{_directory()}/{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(fd) and deadline.left_seconds:
            clock.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _directory() -> str:
    """The private directory of this user."""
    user = os.getuid()
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    path = f"{own}/lance-memwal" if os.path.isdir(own) else f"{tempfile.gettempdir()}/lance-memwal-{user}"
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & _PRIVATE:
        raise InvalidInputError(f"{path} must be a directory of this user alone (mode 0700)")
    return path


def _read_private(path: str) -> str | None:
    """The text of a file that nobody else can read; None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid() or found.st_mode & _PRIVATE:
            raise InvalidInputError(f"others can read {path}: remove it")
        return os.read(fd, 4096).decode("ascii", "replace").strip()
    finally:
        os.close(fd)


def _create_private(path: str, text: str, clock: Clock) -> None:
    """Create the file whole, unless it is there."""
    staged = f"{path}.{clock.token_hex(8)}"
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        os.link(staged, path)
    except FileExistsError:
        pass
    finally:
        os.close(fd)
        os.unlink(staged)
