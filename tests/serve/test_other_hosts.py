"""Owners for other hosts: TLS and a given token, or nothing."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyarrow import flight

import lance_memwal as mw
from lance_memwal.serve import desk, runtime
from lance_memwal.serve.record import OwnerRecords
from lance_memwal.serve.wire import encode_header
from tests.harness.processes import start
from tests.serve.shared_child import own_and_put

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
TOKEN = "a-token-that-both-hosts-were-given"


@dataclass(frozen=True)
class Files:
    """A certificate for this host, which signs itself, and its key."""

    certificate: Path
    key: Path


def self_signed(directory: Path, name: str) -> Files:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = Files(directory / f"{name}.pem", directory / f"{name}.key")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
    return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return self_signed(tmp_path, "owner")


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


@pytest.fixture
def owned(table: mw.Table, files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[mw.TableWriter]:
    """An owner that other hosts can reach; its callers have all that they need."""
    monkeypatch.setenv("LANCE_MEMWAL_TOKEN", TOKEN)
    monkeypatch.setenv("LANCE_MEMWAL_HOST", "127.0.0.1")
    monkeypatch.setenv("LANCE_MEMWAL_TLS_CERT", str(files.certificate))
    monkeypatch.setenv("LANCE_MEMWAL_TLS_KEY", str(files.key))
    monkeypatch.setenv("LANCE_MEMWAL_TLS_CA", str(files.certificate))
    with table.writer(shared=True) as owner:
        owner.put([{"id": 0, "v": "owner"}])
        yield owner


def address_of(table: mw.Table) -> str:
    [shard] = table.shards()
    found = OwnerRecords(table.location, shard.shard_id).find(shard.epoch)
    assert found is not None
    return found.address


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def test_a_caller_with_token_and_certificate_writes_from_wherever_it_is(
    table: mw.Table, owned: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of another host is followed, since the address is one for other hosts."""
    assert address_of(table).startswith("grpc+tls://127.0.0.1:")
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    with table.writer(shared=True) as other:
        assert other.put([{"id": 1, "v": "a"}]).written == 1
        assert other.update([{"id": 1, "v": "b"}]).written == 1
        assert other.owned_shards == set()
        assert other.get(1) == {"id": 1, "v": "b"}


def test_an_owner_on_another_host_that_dies_is_replaced(
    table: mw.Table, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "LANCE_MEMWAL_TOKEN": TOKEN,
        "LANCE_MEMWAL_HOST": "localhost",
        "LANCE_MEMWAL_TLS_CERT": str(files.certificate),
        "LANCE_MEMWAL_TLS_KEY": str(files.key),
        "LANCE_MEMWAL_TLS_CA": str(files.certificate),
    }
    child = start(own_and_put, table.uri, [{"id": 0, "v": "a"}], settings)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert child.receive(20) is not None
    with table.writer(shared=True) as writer:
        writer.put([{"id": 1, "v": "a"}])
        assert writer.owned_shards == set()
        assert address_of(table).startswith("grpc+tls://localhost:")
        child.kill()
        child.wait(10)
        writer.put([{"id": 2, "v": "a"}])
        assert len(writer.owned_shards) == 1
    assert ids(table) == [0, 1, 2]


def test_a_stranger_gets_nothing_however_it_comes(table: mw.Table, owned: mw.TableWriter, files: Files) -> None:
    """Without TLS, without the certificate, without the token, with the word for another address."""
    address = address_of(table)
    secret = runtime.Secret(TOKEN)
    word = secret.word_for(address)
    body = bytes(runtime.NONCE_BYTES) + encode_header({"version": desk.WIRE_VERSION})

    def call(client: Any, headers: list[tuple[bytes, bytes]]) -> Any:
        options = flight.FlightCallOptions(headers=headers, timeout=5)
        return list(client.do_action(flight.Action(desk.HELLO, body), options))

    plain = flight.FlightClient(address.replace("grpc+tls", "grpc+tcp"))
    with pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)):
        call(plain, [(b"authorization", word)])
    roots = files.certificate.read_bytes()
    with pytest.raises(flight.FlightUnavailableError):
        call(flight.FlightClient(address), [(b"authorization", word)])
    trusting = flight.FlightClient(address, tls_root_certs=roots)
    wrong = [b"", TOKEN.encode(), secret.word_for("grpc+tls://127.0.0.1:1"), runtime.Secret("x" * 20).word_for(address)]
    for said in wrong:
        with pytest.raises(flight.FlightUnauthenticatedError):
            call(trusting, [(b"authorization", said)])
    assert len(call(trusting, [(b"authorization", word)])) == 1
    assert ids(table) == [0]


def test_a_caller_that_does_not_trust_the_certificate_says_so_and_takes_nothing_over(
    table: mw.Table, owned: mw.TableWriter, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for roots in (str(self_signed(tmp_path, "stranger").certificate), ""):
        monkeypatch.setenv("LANCE_MEMWAL_TLS_CA", roots)
        with table.writer(shared=True) as other, pytest.raises(mw.UnavailableError, match="certificate") as found:
            other.put([{"id": 1, "v": "a"}])
        assert not found.value.retryable
    monkeypatch.setenv("LANCE_MEMWAL_TLS_CA", str(files.certificate))
    with table.writer(shared=True) as other:
        assert other.put([{"id": 1, "v": "a"}]).written == 1, "the right one counts from now on"
    assert len(owned.owned_shards) == 1
    assert table.shards()[0].epoch == 1
    assert ids(table) == [0, 1]


def test_a_caller_without_the_token_is_told_so(
    table: mw.Table, owned: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, said in (("", "set LANCE_MEMWAL_TOKEN"), ("another-token-of-a-stranger", "does not know our token")):
        monkeypatch.setenv("LANCE_MEMWAL_TOKEN", token)
        with table.writer(shared=True) as other, pytest.raises(mw.UnavailableError, match=said):
            other.put([{"id": 1, "v": "a"}])
    assert len(owned.owned_shards) == 1
    assert ids(table) == [0]


def test_an_owner_does_not_listen_for_other_hosts_without_all_of_it(
    table: mw.Table, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"TOKEN": TOKEN, "HOST": "127.0.0.1", "TLS_CERT": str(files.certificate), "TLS_KEY": str(files.key)}
    wrong: list[tuple[dict[str, str], str]] = [
        ({"TOKEN": ""}, "given token"),
        ({"TLS_CERT": ""}, "TLS"),
        ({"TLS_KEY": ""}, "TLS"),
        ({"TLS_KEY": "/nowhere"}, "cannot be read"),
        ({"HOST": ""}, "LANCE_MEMWAL_HOST"),
        ({"HOST": "a b"}, "LANCE_MEMWAL_HOST"),
        ({"HOST": "x/../y"}, "LANCE_MEMWAL_HOST"),
        ({"HOST": "0"}, "LANCE_MEMWAL_HOST"),
        ({"HOST": "0.0.0.0"}, "LANCE_MEMWAL_HOST"),
        ({"HOST": "[0::0]"}, "LANCE_MEMWAL_HOST"),
        ({"PORT": "99999"}, "port"),
        ({"PORT": "x"}, "port"),
    ]
    for change, said in wrong:
        for name, value in {"PORT": "", **whole, **change}.items():
            monkeypatch.setenv(f"LANCE_MEMWAL_{name}", value)
        with table.writer(shared=True) as writer, pytest.raises(mw.InvalidInputError, match=said):
            writer.put([{"id": 1, "v": "a"}])
    assert ids(table) == []
    assert not list(Path(table.uri).rglob("memwal_owner_*.json"))


def test_nothing_secret_lies_beside_the_table(table: mw.Table, owned: mw.TableWriter, files: Files) -> None:
    secrets = [TOKEN.encode(), files.key.read_bytes().split(b"\n")[1]]
    for path in Path(table.uri).rglob("*"):
        assert path.is_dir() or not any(secret in path.read_bytes() for secret in secrets), path
