"""Who may talk to the lab: the browser that was given the token, on this machine, from the lab's own page.

The lab runs code on the user's machine, and any page that a browser shows can send requests to 127.0.0.1. So a request
has to pass three checks, and each of them holds alone:

- `Host` is the address that the lab listens at: another name that was made to point here (DNS rebinding) is refused.
- `Origin` and `Sec-Fetch-Site`, which pages cannot forge, say that no other site has asked.
- The token, which was drawn when the lab was started, stands in the address that the user opened, then in a cookie
  that only this site gets; what changes something has to send it as a header besides, which no other site can.
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
    """Draw a token."""
    return secrets.token_urlsafe(24)


class Guard:
    """Passes requests on to an app, or refuses them with 403 and a sentence."""

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
        """Return why a request is refused, or nothing."""
        if scope["type"] != "http":
            return "The lab answers HTTP requests only."
        if headers.get("host") not in self._hosts:
            return f"The lab answers at http://{self._hosts[0]} only."
        origin = headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in self._hosts]:
            return "Another site asked, and the lab answers its own page only."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "Another site asked, and the lab answers its own page only."
        if scope["method"] not in ("GET", "HEAD"):
            known = self._is_token(headers.get(HEADER, ""))
        else:
            known = self._in_address(scope) or self._is_token(self._of_cookie(headers.get("cookie", "")))
        return "" if known else "Open the address that `feedline lab` has printed: it has a token in it."

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
