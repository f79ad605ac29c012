"""The other side's HTTP interface: one function, one request. No redirects, no retries, no proxies.

No error is swallowed: a function returns what the other side said, or raises what the standard library raises
(`HTTPError`, `URLError`, `RemoteDisconnected`, `TimeoutError` …). A reply that is not what was asked for is a
`BadReply`, because an answer that nobody understands is not a success.
"""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

TIMEOUT_S = 8.0


class BadReply(ValueError):
    """The other side answered, but not what was asked for."""


class Sheet(TypedDict):
    """An adjustment sheet in the ERP."""

    id: str
    reference: str
    run: str
    subject: str
    status: str


class Approval(TypedDict):
    """An approval of one run's sheets."""

    id: str
    reference: str
    run: str
    sheets: list[str]
    status: str


class Message(TypedDict):
    """A message that was posted."""

    id: str
    run: str


class Closing(TypedDict):
    """The closing of a run."""

    id: str
    run: str
    status: str


def create_sheet(
    server: str,
    *,
    difference: Mapping[str, Any],
    run: str,
    reference: str = "",
    requested_at: str = "",
    timeout: float = TIMEOUT_S,
) -> Sheet:
    """Create an adjustment sheet. The ERP does not compare: every call that arrives makes one."""
    body = {"difference": difference, "run": run, "reference": reference, "requested_at": requested_at}
    return cast(Sheet, _record(call(server, "POST", "/adjustments", body, timeout=timeout)))


def find_sheet(server: str, *, reference: str, timeout: float = TIMEOUT_S) -> list[Sheet]:
    """Return the sheets that bear `reference`: none, one, or (somebody else's fault) several."""
    return cast(list[Sheet], _found(server, "/adjustments", reference, timeout))


def withdraw_sheet(server: str, sheet: str, *, timeout: float = TIMEOUT_S) -> Sheet:
    """Withdraw a sheet; withdrawing it again changes nothing."""
    return cast(Sheet, _record(call(server, "POST", f"/adjustments/{quote(sheet, safe='')}/withdraw", {}, timeout=timeout)))


def submit_approval(server: str, *, run: str, sheets: Sequence[str], reference: str = "", timeout: float = TIMEOUT_S) -> Approval:
    """Submit one approval for `sheets`. Every call that arrives makes one."""
    body = {"run": run, "sheets": list(sheets), "reference": reference}
    return cast(Approval, _record(call(server, "POST", "/approvals", body, timeout=timeout)))


def find_approval(server: str, *, reference: str, timeout: float = TIMEOUT_S) -> list[Approval]:
    """Return the approvals that bear `reference`."""
    return cast(list[Approval], _found(server, "/approvals", reference, timeout))


def withdraw_approval(server: str, approval: str, *, timeout: float = TIMEOUT_S) -> Approval:
    """Withdraw an approval. A 409 means that a person has processed it: it can no longer be withdrawn."""
    return cast(Approval, _record(call(server, "POST", f"/approvals/{quote(approval, safe='')}/withdraw", {}, timeout=timeout)))


def send_chat(server: str, *, run: str, text: str, timeout: float = TIMEOUT_S) -> Message:
    """Post a message. Programs cannot read this chat, so nobody can ask whether it arrived."""
    return cast(Message, _record(call(server, "POST", "/chat/messages", {"run": run, "text": text}, timeout=timeout)))


def close_run(server: str, *, run: str, approval: str, key: str, timeout: float = TIMEOUT_S) -> Closing:
    """Close a run. The same key, while it is remembered, gives the same answer and no second closing."""
    body = {"approval": approval}
    headers = {"Idempotency-Key": key}
    return cast(Closing, _record(call(server, "PUT", f"/runs/{quote(run, safe='')}/close", body, headers, timeout=timeout)))


def _opener() -> urllib.request.OpenerDirector:
    """An opener without the redirect and proxy handlers: what is sent goes to the place named, and goes once."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.HTTPHandler, urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor):
        opener.add_handler(handler())
    return opener


_OPENER = _opener()


def call(
    server: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float,
) -> Any:
    """Make one request and return the JSON that answers it."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(server + path, data, sent, method=method)
    try:
        with _OPENER.open(request, timeout=timeout) as reply:
            return json.load(reply)
    except HTTPError as error:
        with error:  # the same error with its body read: whoever keeps it must not keep the connection open
            raise HTTPError(error.url, error.code, error.msg, error.headers, io.BytesIO(error.read())) from None


def _found(server: str, path: str, reference: str, timeout: float) -> list[dict[str, Any]]:
    reply = call(server, "GET", f"{path}?{urlencode({'reference': reference})}", None, timeout=timeout)
    items = reply.get("items") if isinstance(reply, dict) else None
    if not isinstance(items, list):
        raise BadReply(f"not a search result: {reply!r}")
    return [_record(item) for item in items]


def _record(reply: Any) -> dict[str, Any]:
    if not isinstance(reply, dict) or not isinstance(reply.get("id"), str):
        raise BadReply(f"not a record with an id: {reply!r}")
    return reply
