"""Web servers with certificates, and behind proxies that the environment configures."""

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline.datasets import Remote
from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.storage import Storage
from feedline.errors import SourceError
from tests.datasets.storage.servers import WebServer, proxy_for, web_server

pytest.importorskip("cryptography")

DATA = bytes(i * 7 % 251 for i in range(300_000))
SLOW = Remote(timeout_s=10)


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "pause_s", 20.0)


"""With such long pauses, a test notices any retry."""
COUNT = 30


def certificate_for(path: Path, *names: str) -> Path:
    """Write a self-signed certificate and its key, for 127.0.0.1 and hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    if not names:
        hosts.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.bin").write_bytes(DATA)
    return folder


@pytest.fixture
def secure(folder: Path, tmp_path: Path) -> Iterator[WebServer]:
    with web_server(folder, certificate_for(tmp_path / "server.pem")) as server:
        yield server


def read_all(address: str, storage: Storage) -> bytes:
    blob = storage.open(address)
    try:
        return blob.read(0, blob.size)
    finally:
        blob.close()
        storage.close()


def test_a_certificate_that_the_environment_trusts(secure: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.certificate))
    assert read_all(f"{secure.address}/a.bin", Storage(SLOW)) == DATA
    assert secure.connections == 1


@pytest.mark.parametrize("trusted", ["nobody", "another", "another host"])
def test_an_untrusted_certificate_fails_without_retries(
    folder: Path, trusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["elsewhere.example"] if trusted == "another host" else []
    certificate = certificate_for(tmp_path / "server.pem", *names)
    if trusted == "another":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate_for(tmp_path / "another.pem")))
    elif trusted == "another host":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_server(folder, certificate) as server:
        with pytest.raises(SourceError, match=r"certificate is not trusted.*SSL_CERT_FILE"):
            read_all(f"{server.address}/a.bin", Storage(SLOW))
        assert server.connections == 1


def test_a_server_without_https_fails_at_once(folder: Path) -> None:
    with web_server(folder) as server:
        address = server.address.replace("http://", "https://")
        with pytest.raises(SourceError, match="does not speak https"):
            read_all(f"{address}/a.bin", Storage(SLOW))


# -- proxies ---


def test_http_through_a_proxy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(folder) as server, proxy_for({"shards.example": server}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://ada:s%20cret@127.0.0.1:{proxy.server_port}")
        assert read_all("http://shards.example/a.bin?x=1", Storage(SLOW)) == DATA
        asked = set(proxy.asked)
        assert len(server.requests) >= 2
    assert asked == {("GET", "http://shards.example/a.bin?x=1", "Basic YWRhOnMgY3JldA==")}


def test_https_through_a_proxy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certificate_for(tmp_path / "server.pem", "shards.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_server(folder, certificate) as server, proxy_for({"shards.example:443": server}) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.server_port}")
        assert read_all("https://shards.example/a.bin", Storage(SLOW)) == DATA
        asked = list(proxy.asked)
    assert asked == [("CONNECT", "shards.example:443", None)]


def test_hosts_excluded_from_the_proxy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(folder) as server, proxy_for({}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        assert read_all(f"{server.address}/a.bin", Storage(SLOW)) == DATA
        assert proxy.asked == []


def test_a_proxy_that_cannot_reach_the_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "pause_s", 0.001)
    with proxy_for({}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_port}")
        for scheme in ("http", "https"):
            with pytest.raises(SourceError, match="502"):
                read_all(f"{scheme}://shards.example/a.bin", Storage(Remote(retries=1)))


def test_rejects_a_redirect_to_http(secure: WebServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.certificate))
    with web_server(folder) as plain:
        secure.fault = lambda request: f"{plain.address}/a.bin?token=s3cret"
        with pytest.raises(SourceError, match=r"redirected from https to http://.*unsafe_redirects=True") as caught:
            read_all(f"{secure.address}/a.bin", Storage(SLOW))
        assert "s3cret" not in str(caught.value)
        assert not plain.requests
        assert read_all(f"{secure.address}/a.bin", Storage(Remote(unsafe_redirects=True))) == DATA
