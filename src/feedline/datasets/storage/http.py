"""Read ranges of files on web servers, using only the standard library."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import re
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from typing import Any

from feedline.datasets.storage.addresses import shown_url, without_secrets
from feedline.datasets.storage.blob import Blob, RetryPolicy, Throttled, Transient, Version, read_range
from feedline.errors import SourceChanged, SourceError

_PIECE = 1 << 18
_HEAD = 1 << 16
"""Bytes fetched by the first request, which also learns the size."""
_REDIRECTS = (301, 302, 303, 307, 308)
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_THROTTLED = (429, 503)
_REFUSED = (401, 403, 404, 410)
_MOST_REDIRECTS = 8
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""OpenSSL's names, by version, for an answer that is not TLS."""

_SIGNS = "/%:=&?~#+!$,;'@()*[]"
"""Characters that are not escaped in an address."""

Connection = http.client.HTTPConnection
Response = http.client.HTTPResponse


class Connections:
    """Idle open connections to web servers; each is used by one thread at a time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[Connection]] = {}
        self._is_closed = False

    def acquire(self, scheme: str, host: str) -> tuple[Connection, bool]:
        """Return a connection, and whether it was used before: the server may have closed a used one."""
        with self._lock:
            idle = self._idle.get((scheme, host))
            if idle:
                return idle.pop(), True
        return self._connect(scheme, host), False

    def release(self, scheme: str, host: str, connection: Connection) -> None:
        """Return a connection whose last answer was read completely."""
        with self._lock:
            if not self._is_closed:
                self._idle.setdefault((scheme, host), []).append(connection)
                return
        connection.close()

    def _connect(self, scheme: str, host: str) -> Connection:
        proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        if proxy is None:
            return kind(host, timeout=self._timeout_s)
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        address = parts.netloc.rpartition("@")[2]
        headers = {"Proxy-" + name: value for name, value in _authorisation(parts).items()}
        if scheme == "http":
            return _ThroughProxy(address, host, headers, self._timeout_s)
        connection = kind(address, timeout=self._timeout_s)
        connection.set_tunnel(host, headers=headers)
        return connection

    def close(self) -> None:
        """Close idle connections now, and those in use when they are released."""
        with self._lock:
            idle, self._idle = self._idle, {}
            self._is_closed = True
        for connections in idle.values():
            for connection in connections:
                connection.close()


class _ThroughProxy(Connection):
    """Requests files through a proxy. Tunnels are for https: most proxies refuse them to other ports."""

    def __init__(self, proxy: str, host: str, headers: dict[str, str], timeout_s: float) -> None:
        super().__init__(proxy, timeout=timeout_s)
        self._web_host = host
        self._headers = headers

    # Any: as in the standard library.
    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> None:
        super().request(method, f"http://{self._web_host}{url}", body, {**(headers or {}), **self._headers}, **options)


class _Refused(SourceError):
    """The server refuses to serve this address."""


class HttpBlob(Blob):
    """A file on a web server that supports ranges."""

    def __init__(
        self,
        address: str,
        connections: Connections,
        retry_policy: RetryPolicy,
        *,
        unsafe_redirects: bool = False,
        version: Version | None = None,
    ) -> None:
        self.name = shown_url(address)
        self.address = address
        self._target = address
        """The address after redirects."""
        self._connections = connections
        self._retry_policy = retry_policy
        self._unsafe_redirects = unsafe_redirects
        self._begins_private = True
        """True if the given address is private; known after the first request."""
        self.size, self.tag = version or (-1, "")
        self._head = b""
        if version is None:
            self._head = read_range(self._first, 0, 1, name=self.name, retry_policy=retry_policy)
        if self.size < 0:
            self.size = len(self._head)

    def _first(self, _start: int, _stop: int) -> Iterator[bytes]:
        """Fetch the beginning of the file, and read size and tag from the answer."""
        data = b"".join(self._get(0, _HEAD))
        if self.size == 0:
            data = b" "  # empty file: nothing to read or wait for
        yield data

    def read(self, start: int, stop: int) -> bytes:
        if stop <= min(len(self._head), self.size):
            return self._head[start:stop]
        return read_range(self._get, start, stop, name=self.name, retry_policy=self._retry_policy)

    def _get(self, start: int, stop: int) -> Iterator[bytes]:
        address, is_old = self._target, self._target != self.address
        for _ in range(_MOST_REDIRECTS):
            try:
                target = yield from self._ask(address, start, stop)
            except _Refused as exc:
                if not is_old:
                    raise SourceError(str(exc)) from None
                # A signature in the redirect has expired, or its target has moved: ask the original address again.
                address, is_old = self.address, False
                continue
            if target is None:
                return
            address = self._target = self._followed(address, target)
        raise SourceError(f"{self.name} is redirected more than {_MOST_REDIRECTS} times.")

    def _followed(self, address: str, target: str) -> str:
        """Return the target of a redirect. Raises SourceError: the target is invalid or not allowed."""
        try:
            found = urllib.parse.urljoin(address, target)
            scheme = urllib.parse.urlsplit(found).scheme
        except ValueError:  # its message quotes part of the address
            raise SourceError(f"{self.name} is redirected to what is no address.") from None
        if scheme not in ("http", "https"):
            raise SourceError(f"{self.name} is redirected to {shown_url(found)!r}, which is not on the web.")
        if address.lower().startswith("https:") and scheme == "http" and not self._unsafe_redirects:
            raise SourceError(
                f"{self.name} is redirected from https to {shown_url(found)}, where anybody on the way could read and "
                "change what comes. Ask the server's owner for an https address, or give Remote(unsafe_redirects=True)."
            )
        return found

    def _odd_signs(self) -> SourceError:
        """Return an error for an address that Python rejects; Python's own message would show all of it."""
        what = self.name if self._target == self.address else f"What {self.name} is redirected to"
        return SourceError(f"{what} has signs in it that no address may have.")

    def _send(self, connection: Connection, address: str, path: str, headers: dict[str, str]) -> Response:
        """Send the request after checking whether the server's address is private."""
        if connection.sock is None:
            try:
                connection.connect()
            except UnicodeError:
                raise self._odd_signs() from None
        is_private = _is_private(connection, urllib.parse.urlsplit(address).hostname or "")
        if address == self.address:
            self._begins_private = is_private
        elif is_private and not self._begins_private and not self._unsafe_redirects:
            connection.close()
            raise SourceError(
                f"{self.name} is redirected from a public address to {shown_url(address)}, a private one, which the "
                "server itself may not be able to reach. If that is meant, give Remote(unsafe_redirects=True)."
            )
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def _ask(self, address: str, start: int, stop: int) -> Generator[bytes, None, str | None]:
        """Yield the pieces of a range; return the address to ask instead, or None when the range is complete."""
        try:
            parts = urllib.parse.urlsplit(address)
            host = parts.netloc.rpartition("@")[2]
            connection, is_used = self._connections.acquire(parts.scheme, host)
        except (http.client.InvalidURL, ValueError):
            raise self._odd_signs() from None
        path = urllib.parse.quote(parts.path or "/", safe=_SIGNS)
        if parts.query:
            path += f"?{urllib.parse.quote(parts.query, safe=_SIGNS)}"
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "feedline"}
        headers.update(_authorisation(parts))
        whole, answer = False, None
        try:
            try:
                try:
                    answer = self._send(connection, address, path, headers)
                except (http.client.RemoteDisconnected, ConnectionError):
                    if not is_used:
                        raise
                    connection.close()  # the server closed it while it was idle, which is normal
                    answer = self._send(connection, address, path, headers)
                if answer.status in _REDIRECTS:
                    answer.read(_HEAD)  # the body is useless, and may be endless
                    whole = answer.isclosed() and not answer.will_close
                    return answer.getheader("Location") or ""
                left = self._check(answer, start, stop)
                while left > 0 and (piece := answer.read(min(_PIECE, left))):
                    left -= len(piece)
                    yield piece
                if not answer.will_close:  # bytes beyond the range are not read; the connection is closed instead
                    whole = not answer.length if answer.length is not None else not answer.read(1)
            except ssl.SSLCertVerificationError as exc:
                raise SourceError(
                    f"{self.name}: the server's certificate is not trusted: {exc.verify_message or exc}. If it is "
                    "signed by an authority of your own, let SSL_CERT_FILE name a file with its certificate."
                ) from exc
            except ssl.SSLError as exc:
                if exc.reason in _NO_TLS:
                    raise SourceError(f"{self.name}: what answers there does not speak https ({exc.reason}).") from exc
                raise Transient(f"{type(exc).__name__}: {exc}") from exc
            except (http.client.HTTPException, OSError) as exc:
                if isinstance(exc, SourceError):
                    raise
                if isinstance(exc, http.client.InvalidURL):
                    raise self._odd_signs() from None
                message = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
                shown = without_secrets(without_secrets(message, self.address), address)
                raise Transient(shown) from (exc if shown == message else None)
        finally:
            if whole:
                self._connections.release(parts.scheme, host, connection)
            else:
                if answer is not None:
                    answer.close()  # it holds the socket, too
                connection.close()
        return None

    def _check(self, answer: http.client.HTTPResponse, start: int, stop: int) -> int:
        """Return the number of bytes in the answer; raise unless it is the requested range of the same version."""
        status = answer.status
        if status in _TRY_AGAIN:
            message = f"the server answers {_status_text(status)}"
            raise Throttled(message) if status in _THROTTLED else Transient(message)
        if status == 416 and (found := re.fullmatch(r"bytes \*/([0-9]{1,18})", answer.getheader("Content-Range", ""))):
            self._check_size(int(found[1]))
            if start == 0 and self.size == 0:
                return 0
            raise SourceChanged(f"{self.name} has {found[1]} bytes now and ends before byte {start}.")
        if status == 200:
            raise SourceError(
                f"{self.name}: the server sends the whole file when it is asked for a range of it, so that no part can "
                "be read on its own. Use a server that knows ranges (nginx, Apache and object storage do), or copy the "
                "file here."
            )
        if status != 206:
            reasons = {404: "there is no such file", 410: "it is gone", 401: "login required", 403: "access is refused"}
            why = f" ({reasons[status]})" if status in reasons else ""
            kind = _Refused if status in _REFUSED else SourceError
            raise kind(f"{self.name}: the server answers {_status_text(status)}{why}.")
        found = _RANGE.fullmatch(answer.getheader("Content-Range", ""))
        first, last, size = (int(number) for number in found.groups()) if found else (-1, -1, -1)
        if first != start or not first <= last < min(stop, size):
            raise SourceError(
                f"{self.name}: the answer {answer.getheader('Content-Range', '')[:80]!r} is not the range asked for, "
                f"bytes {start}-{stop - 1}. The server, or a proxy before it, is at fault."
            )
        self._check_size(size)
        tag = answer.getheader("ETag") or answer.getheader("Last-Modified") or ""
        if not self.tag:
            self.tag = tag
        elif tag != self.tag:
            raise SourceChanged(f"{self.name} was changed while it was read: its tag was {self.tag} and is {tag}.")
        return last + 1 - first

    def _check_size(self, size: int) -> None:
        if self.size < 0:
            self.size = size
        elif size != self.size:
            raise SourceChanged(f"{self.name} was changed while it was read: it had {self.size} bytes and has {size}.")

    def close(self) -> None:
        self._head = b""


def _status_text(status: int) -> str:
    """Return the standard phrase for a status; the server's own may say anything."""
    return f"{status} {http.client.responses.get(status, '')}".rstrip()


def _is_private(connection: Connection, host: str) -> bool:
    """True if the peer is not reachable from the Internet: this machine, or one in the same network.

    This checks the peer's IP address, not the name, which may resolve differently later. For a machine behind a proxy,
    only the name is known here.
    """
    is_proxy = isinstance(connection, _ThroughProxy) or getattr(connection, "_tunnel_host", None) is not None
    if is_proxy and host.rstrip(".").lower() == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host if is_proxy else connection.sock.getpeername()[0].partition("%")[0])
    except ValueError:  # a host name behind a proxy
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return not found.is_global


def _authorisation(parts: urllib.parse.SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
