"""Where a server is and with which token, from the environment only; and never a token in the clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from abprof.errors import AbprofError

_LOCAL = ("127.0.0.1", "localhost", "::1")


def access(environ: Mapping[str, str], place: str, default: str, tokens: Sequence[str]) -> tuple[str, str]:
    """(address, token): the address that the variable `place` gives, or `default`, and the first of the variables `tokens`
    that is set. Raises AbprofError where there is no token, or it would be sent in the clear."""
    url = environ.get(place) or default
    token = next((environ[name] for name in tokens if environ.get(name)), "")
    if not token:
        also = f" (or {' or '.join(tokens[1:])})" if tokens[1:] else ""
        raise AbprofError("no token", where=tokens[0], advice=f"set it{also} in the environment; --dry-run needs none")
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _LOCAL):
        raise AbprofError(f"{url!r} is not an https address", where=place)
    return url, token
