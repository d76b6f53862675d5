"""Telling of a night: Markdown for people, and a signed message to a web hook."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from abprof.records.errors import AbprofError

URL, KEY = "ABPROF_WEBHOOK", "ABPROF_WEBHOOK_KEY"
_TRIES, _PAUSE, _WAIT = 3, 2.0, 10.0  # seconds


def signature(key: str, stamp: str, body: bytes) -> str:
    """What the header X-Abprof-Signature must be: HMAC-SHA256 by `key` of the header X-Abprof-Timestamp, a point and the body."""
    return (
        "sha256="
        + hmac.new(key.encode(errors="surrogateescape"), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    )


def check_url(url: str) -> None:
    """Raises AbprofError for what is no address of a web hook. The address itself may hold a secret and is not shown."""
    if not url.startswith(("https://", "http://")) or not (url.isascii() and url.isprintable()) or " " in url:
        raise AbprofError("not an http(s) address", where=URL)


def encoded(message: Mapping[str, Any]) -> bytes:
    """The message as one line of JSON, also with names of files and branches that are no text."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(message).encode()


def post(url: str, key: str, message: Mapping[str, Any], pause: float = _PAUSE) -> str:
    """Send the message as JSON, signed where there is a key; "" or why it did not arrive. Redirects are not followed.

    Tried three times where the server is busy, broken or cannot be reached.
    """
    body, said = encoded(message), ""
    for count in range(_TRIES):
        if count:
            time.sleep(pause * 2 ** (count - 1))
        stamp = str(int(time.time()))
        headers = {"Content-Type": "application/json", "User-Agent": "abprof", "X-Abprof-Timestamp": stamp}
        if key:
            headers["X-Abprof-Signature"] = signature(key, stamp, body)
        try:
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - check_url
            with _OPENER.open(request, timeout=_WAIT):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            said = f"the web hook answered {error.code}"
            if error.code < 500 and error.code != 429:
                return said
        except OSError as error:
            said = f"the web hook cannot be reached: {getattr(error, 'reason', error)}"
        except (
            http.client.HTTPException,
            OverflowError,
            ValueError,
        ) as error:  # what they say quotes the address, which may hold a secret
            said = f"the web hook cannot be reached: {type(error).__name__}"
    return said


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: the message is for the address that was given."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Stay)
