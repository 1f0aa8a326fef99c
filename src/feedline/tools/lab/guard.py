"""Access to the lab: only the browser that has the token, on this machine, from the lab's own page.

The lab runs code on the user's machine, and any page in a browser can send requests to 127.0.0.1. So a request must
pass three checks, each of which would be enough alone:

- `Host` must be the address that the lab listens at. Other names made to point here (DNS rebinding) are refused.
- `Origin` and `Sec-Fetch-Site`, which pages cannot forge, must not name another site.
- The token, drawn when the lab starts, must be in the address that the user opens, and later in a cookie that only this
  site gets. Requests that change something must send it as a header, which no other site can do.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-feedline-token"


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(24)


class Guard:
    """Passes requests on to an app, or refuses them with status 403 and a reason."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"feedline_lab_{port}"
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        refusal = self._refusal(scope, headers)
        if refusal:
            await PlainTextResponse(f"{refusal}\n", status_code=403)(scope, receive, send)
        elif scope["path"] == "/" and scope["method"] == "GET" and self._in_address(scope):
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> str:
        """Return why a request is refused; empty if it is accepted."""
        if scope["type"] != "http":
            return "The lab only answers HTTP requests."
        if headers.get("host") not in self._hosts:
            return f"The lab only answers at http://{self._hosts[0]}."
        origin = headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in self._hosts]:
            return "Another site sent this request. The lab only answers its own page."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "Another site sent this request. The lab only answers its own page."
        if scope["method"] not in ("GET", "HEAD"):
            known = self._is_token(headers.get(HEADER, ""))
        else:
            known = self._in_address(scope) or self._is_token(self._of_cookie(headers.get("cookie", "")))
        return "" if known else "The token is missing or wrong. Open the address that `feedline lab` printed."

    def _in_address(self, scope: Scope) -> bool:
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])
        return self._is_token(given[0])

    def _of_cookie(self, text: str) -> str:
        try:
            found = SimpleCookie(text).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())
