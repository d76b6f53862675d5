"""Where a server is and with which token, from the environment only; and never a token in the clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from abprof.records.errors import AbprofError

_LOCAL = ("127.0.0.1", "localhost", "::1")


def access(environ: Mapping[str, str], place: str, default: str, tokens: Sequence[str]) -> tuple[str, str]:
    """(address, token): the address that the variable `place` gives, or `default`, and the first of the variables `tokens`
    that is set. Raises AbprofError where there is no token, or it would be sent in the clear."""
    url = environ.get(place) or default
    token = next((environ[name] for name in tokens if environ.get(name)), "")
    if not token:
        also = f" (or {' or '.join(tokens[1:])})" if tokens[1:] else ""
        raise AbprofError("no token", where=tokens[0], advice=f"set it{also} in the environment; --dry-run needs none")
    if not (token.isascii() and token.isprintable()):
        raise AbprofError("it holds what no token does", where="the token", advice=f"set {tokens[0]} anew")
    try:
        parts = urlsplit(url if url.isascii() and url.isprintable() else "")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _LOCAL):
        raise AbprofError(f"{url[:200]!r} is not an https address", where=place)
    return url, token
