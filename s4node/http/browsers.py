"""Whether a browser's page may ask. Pure.

Rules
- A page of another site can have a browser send requests to this machine, so its address alone
  protects nothing. The browser says from where a request comes: ``Origin`` and ``Sec-Fetch-Site``.
- A page whose name was bound to this machine's address after it was loaded is of the same origin
  for the browser. But the requests then have that name as their ``Host``, which is unknown here.
  Addresses in numbers cannot be bound again.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from s4node.http.messages import Answer, Request


def refusal(request: Request, names: Collection[str]) -> Answer | None:
    host = request.headers.get("host", "").lower()
    if not _is_known(host, names):
        known = ", ".join(sorted(names))
        return Answer(
            421,
            f"{host[:200]!r} is no name of this node; ask for its address in numbers, or {known} "
            f"(s4.listener.advertise gives it another one)\n",
        )
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "none")
    if (origin is not None and _place(origin) != host) or site not in ("same-origin", "none"):
        return Answer(403, "pages of other origins may not ask here\n")
    return None


def _is_known(host: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if set(host) & set("/?#@\\") or name.rstrip(".") in names:
            return not set(host) & set("/?#@\\")
        return not ip_address(name).is_unspecified
    except ValueError:
        return False


def _place(origin: str) -> str:
    """Host and port of an origin, as a ``Host`` has them; empty if it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
