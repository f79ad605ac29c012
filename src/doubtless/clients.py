"""What the errors and replies of well-known clients prove about one request: the table, and how it is read.

The table is data (`KNOWN`, `REJECTED_STATUSES`); what it does not list is unknown. Classes are recognised by the name and
module of each class in their MRO, so nothing is imported that the user has not imported, and subclasses count as what they
are. A copy of a client that another package vendors is another client, and therefore unknown.

The table speaks of *one* request. Clients make more of them on their own (redirects, transport retries), and then the last
error says nothing about the first request: a POST that was answered with 303 has landed, even if the page that it points to
refuses the connection. So whatever is not unknown must also show no earlier request: neither in the reply's history nor in
the frames of the client that the traceback holds. This check only ever makes a verdict more cautious.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Literal, NamedTuple

Kind = Literal["not_sent", "rejected", "unknown"]
Rule = Literal["not_sent", "unknown", "reply", "inner", "smtp"]


class Verdict(NamedTuple):
    """What one error or reply proves. `note` says why, where the class name alone does not."""

    kind: Kind
    code: str
    note: str = ""
    retry_after_us: int | None = None


class Known(NamedTuple):
    """One row of the table: `client` is the top-level module that defines the class `name`."""

    client: str
    name: str
    rule: Rule


RULES: dict[Rule, str] = {
    "not_sent": "nothing of the request left this machine",
    "unknown": "the request may have landed (not_sent if it was raised inside the TLS handshake)",
    "reply": "by the status of the reply",
    "inner": "by the error that it carries; without one, unknown (not_sent if that one was raised inside the TLS handshake)",
    "smtp": "by the reply code: 4yz before the content was sent is not_sent, 5yz rejected, anything else unknown",
}

_ROWS: tuple[tuple[str, Rule, str], ...] = (
    ("httpx", "not_sent", "ConnectError ConnectTimeout PoolTimeout ProxyError UnsupportedProtocol"),
    ("httpx", "reply", "HTTPStatusError"),
    # LocalProtocolError may come after half of the body; InvalidURL may come from a URL that the reply named.
    ("httpx", "unknown", "ReadError ReadTimeout WriteError WriteTimeout CloseError LocalProtocolError RemoteProtocolError"),
    ("httpx", "unknown", "DecodingError TooManyRedirects InvalidURL"),
    ("requests", "not_sent", "ConnectTimeout MissingSchema InvalidSchema InvalidURL"),
    ("requests", "reply", "HTTPError"),
    ("requests", "inner", "ConnectionError ProxyError SSLError"),
    # InvalidHeader is also what a reply's malformed Retry-After raises.
    ("requests", "unknown", "Timeout ReadTimeout ChunkedEncodingError ContentDecodingError JSONDecodeError InvalidHeader"),
    ("requests", "unknown", "RetryError TooManyRedirects"),
    ("urllib3", "not_sent", "NewConnectionError NameResolutionError ConnectTimeoutError EmptyPoolError"),
    ("urllib3", "inner", "MaxRetryError ProxyError SSLError"),
    ("urllib3", "unknown", "ProtocolError ReadTimeoutError IncompleteRead DecodeError ResponseError InvalidHeader"),
    (
        "aiohttp",
        "not_sent",
        "ClientConnectorError ClientConnectorDNSError ClientConnectorCertificateError ClientConnectorSSLError",
    ),
    ("aiohttp", "not_sent", "ClientProxyConnectionError ClientHttpProxyError UnixClientConnectorError ServerFingerprintMismatch"),
    ("aiohttp", "not_sent", "ConnectionTimeoutError InvalidUrlClientError NonHttpUrlClientError"),
    ("aiohttp", "reply", "ClientResponseError ContentTypeError"),
    ("aiohttp", "unknown", "ServerDisconnectedError ServerTimeoutError SocketTimeoutError ClientOSError ClientPayloadError"),
    ("aiohttp", "unknown", "ClientConnectionResetError TooManyRedirects WSServerHandshakeError"),
    ("aiohttp", "unknown", "InvalidUrlRedirectClientError NonHttpUrlRedirectClientError"),
    ("urllib", "reply", "HTTPError"),
    ("urllib", "inner", "URLError"),
    ("urllib", "unknown", "ContentTooShortError"),
    ("http", "unknown", "RemoteDisconnected BadStatusLine IncompleteRead"),
    ("smtplib", "smtp", "SMTPConnectError SMTPHeloError SMTPAuthenticationError SMTPSenderRefused SMTPRecipientsRefused"),
    ("smtplib", "smtp", "SMTPDataError"),
    ("smtplib", "not_sent", "SMTPNotSupportedError"),
    ("smtplib", "unknown", "SMTPServerDisconnected SMTPResponseException"),
    ("socket", "not_sent", "gaierror"),
    ("ssl", "not_sent", "SSLCertVerificationError"),
    ("ssl", "unknown", "SSLError"),
    ("builtins", "not_sent", "ConnectionRefusedError"),
    ("builtins", "unknown", "ConnectionResetError ConnectionAbortedError BrokenPipeError TimeoutError MemoryError"),
    ("builtins", "unknown", "KeyboardInterrupt SystemExit GeneratorExit"),
    ("asyncio", "unknown", "CancelledError"),
)

KNOWN: tuple[Known, ...] = tuple(Known(client, name, rule) for client, rule, names in _ROWS for name in names.split())

# Not here, so unknown: 408, 409, 425, and what no RFC registers (499 and 460 mean that a proxy lost the client on the way).
REJECTED_STATUSES = frozenset({*range(400, 408), *range(410, 419), 421, 422, 423, 424, 426, 428, 431, 451})
NOT_SENT_STATUSES = frozenset({429})

# Reply classes, by the client that defines them. http.client's is also what `urllib.request.urlopen` returns.
RESPONSES: tuple[tuple[str, str], ...] = (
    ("httpx", "Response"),
    ("requests", "Response"),
    ("urllib3", "BaseHTTPResponse"),
    ("urllib3", "HTTPResponse"),
    ("aiohttp", "ClientResponse"),
    ("http", "HTTPResponse"),
    ("urllib", "addinfourl"),
)

_RULE_OF: dict[tuple[str, str], Rule] = {(known.client, known.name): known.rule for known in KNOWN}
_RESPONSE_NAMES = frozenset(RESPONSES)
# aiohttp sends these again, once and on its own, when the connection drops before a reply: there is no switch against it.
_AIOHTTP_REPEATS = frozenset({"PUT", "DELETE"})
_ECHO = "the client made an earlier request itself (a redirect or a transport retry), and that one may have landed"
_MAX_LINKS = 10
_MAX_WAIT_US = 366 * 86_400 * 1_000_000  # a header is foreign input: what it says must still fit a stored integer


def judge(exc: BaseException) -> Verdict:
    """Say what this exception proves, if it came from one request and nothing else of the step can have had an effect."""
    verdict = _verdict(exc)
    if verdict.kind != "unknown" and _sent_before(exc):
        return verdict._replace(kind="unknown", note=_ECHO)
    return verdict


def is_response(value: object) -> bool:
    """True for a reply object of a known client."""
    return any(_key(base) in _RESPONSE_NAMES for base in type(value).__mro__)


def judge_response(response: object) -> Verdict:
    """Say what a reply proves by its status. A status below 400 proves nothing: nobody has looked at the content."""
    status = getattr(response, "status_code", None)
    if status is None:
        status = getattr(response, "status", None)
    verdict = _by_status(status, getattr(response, "headers", None))
    if verdict.kind == "unknown":
        return verdict
    if any(map(_may_have_landed, _earlier(response))):
        return verdict._replace(kind="unknown", note=_ECHO)
    return _as_repeated(verdict, response, getattr(response, "method", ""))


def _key(cls: type) -> tuple[str, str]:
    return str(cls.__module__).partition(".")[0], cls.__name__


def _client_of(cls: type) -> str:
    """The client whose class decides about `cls`; empty if the table has none."""
    return next((key[0] for key in map(_key, cls.__mro__) if key in _RULE_OF or key in _RESPONSE_NAMES), "")


def _rule_of(cls: type) -> Rule | None:
    return next((_RULE_OF[key] for key in map(_key, cls.__mro__) if key in _RULE_OF), None)


def _verdict(exc: BaseException) -> Verdict:
    """The table, without looking for earlier requests."""
    name = type(exc).__name__
    rule = _rule_of(type(exc))
    if rule is None:
        return Verdict("unknown", name)
    if rule == "reply":
        return _by_reply(exc)
    if rule == "smtp":
        return _by_smtp_code(exc)
    kind: Kind = "not_sent" if rule == "not_sent" else "unknown"
    if rule == "inner":
        inner = _inside(exc)
        kind = _verdict(inner).kind if inner is not None else "unknown"
    if kind == "unknown" and _in_handshake(exc):
        return Verdict("not_sent", name, "the TLS handshake did not finish")
    return Verdict(kind, name)


def _by_reply(exc: BaseException) -> Verdict:
    """An exception that stands for a reply: it carries the reply (httpx, requests) or is one (aiohttp, urllib)."""
    response = getattr(exc, "response", None)
    if response is not None:
        return judge_response(response)
    if exc.__cause__ is not None and _key(type(exc.__cause__))[0] == "aiohttp":
        return Verdict("unknown", type(exc).__name__, "aiohttp could not parse the reply; the status is of its own making")
    status = getattr(exc, "code", None) if _client_of(type(exc)) == "urllib" else getattr(exc, "status", None)
    verdict = _by_status(status, getattr(exc, "headers", None))
    if verdict.kind == "unknown":
        return verdict if status else verdict._replace(code=type(exc).__name__)
    if any(map(_may_have_landed, _earlier(exc))):
        return verdict._replace(kind="unknown", note=_ECHO)
    return _as_repeated(verdict, exc, getattr(getattr(exc, "request_info", None), "method", ""))


def _as_repeated(verdict: Verdict, source: object, method: object) -> Verdict:
    """A DELETE that landed and was repeated unseen is answered with 404: with aiohttp such a reply proves nothing."""
    if _client_of(type(source)) == "aiohttp" and str(method).upper() in _AIOHTTP_REPEATS:
        return verdict._replace(kind="unknown", note=f"aiohttp repeats {method} itself when a connection drops")
    return verdict


def _by_status(status: object, headers: object) -> Verdict:
    if not isinstance(status, int) or isinstance(status, bool):
        return Verdict("unknown", "", "a reply without a status")
    status = int(status)
    kind: Kind = "unknown"
    if status in NOT_SENT_STATUSES:
        kind = "not_sent"
    elif status in REJECTED_STATUSES:
        kind = "rejected"
    return Verdict(kind, str(status), retry_after_us=retry_after_us(headers) if status >= 400 else None)


def _by_smtp_code(exc: BaseException) -> Verdict:
    """Before the content is sent every refusal is without effect; 4yz asks to come again, 5yz not to.

    After it a 5yz is still a refusal; a 4yz may come from a filter in between that has handed the mail on already.
    """
    recipients = getattr(exc, "recipients", None)
    if isinstance(recipients, dict):
        codes = [reply[0] for reply in recipients.values()]
    else:
        codes = [getattr(exc, "smtp_code", None)]
    name = type(exc).__name__
    if not codes or not all(isinstance(code, int) and 400 <= code <= 599 for code in codes):
        return Verdict("unknown", name)
    lowest = min(codes)
    if lowest >= 500:
        return Verdict("rejected", str(lowest))
    return Verdict("unknown" if _rule_name(exc) == "SMTPDataError" else "not_sent", str(lowest))


def _rule_name(exc: BaseException) -> str:
    return next(key[1] for key in map(_key, type(exc).__mro__) if key in _RULE_OF)


def retry_after_us(headers: object) -> int | None:
    """Read ``Retry-After``: seconds, or a date minus the reply's own ``Date`` (never minus this machine's clock)."""
    get = getattr(headers, "get", None)
    text = get("Retry-After") if callable(get) else None
    if not isinstance(text, str):
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:12]) * 1_000_000, _MAX_WAIT_US)
    sent = get("Date") if callable(get) else None
    if not isinstance(sent, str):
        return None
    from email.utils import parsedate_to_datetime  # only where a reply carries a date

    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(sent)
    except (TypeError, ValueError):
        return None
    return min(max(0, (wait.days * 86_400 + wait.seconds) * 1_000_000), _MAX_WAIT_US)


# What the client did before: its wrapped errors, the reply's history, the frames of its traceback.


def _inside(exc: BaseException) -> BaseException | None:
    """The error that a known client's error wraps."""
    if _rule_of(type(exc)) is None:
        return None
    carried = (getattr(exc, "reason", None), getattr(exc, "original_error", None), *exc.args[:2], exc.__cause__)
    return next((inner for inner in carried if isinstance(inner, BaseException) and inner is not exc), None)


def _links(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_MAX_LINKS):
        if link is None:
            return
        yield link
        link = _inside(link)


def _frames(exc: BaseException) -> Iterator[tuple[str, FrameType]]:
    traceback = exc.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0], frame
        traceback = traceback.tb_next


def _in_handshake(exc: BaseException) -> bool:
    """True if the innermost error left ssl's `do_handshake`: until that returns no request can be written."""
    *_, innermost = _links(exc)
    last = None
    for last in _frames(innermost):  # noqa: B007
        pass
    return isinstance(innermost, OSError) and last is not None and last[0] == "ssl" and last[1].f_code.co_name == "do_handshake"


def _sent_before(exc: BaseException) -> bool:
    return any(_frame_shows_earlier(client, frame) for link in _links(exc) for client, frame in _frames(link))


def _frame_shows_earlier(client: str, frame: FrameType) -> bool:
    name = frame.f_code.co_name
    if client == "requests":
        return name == "resolve_redirects"
    if client == "urllib":
        return name == "http_error_302"
    if client not in ("httpx", "urllib3", "aiohttp"):
        return False
    found = frame.f_locals
    if client == "aiohttp" and name == "_request" and _aiohttp_repeated(found):
        return True
    holders = (found.get("history"), getattr(found.get("retries"), "history", None))
    return any(_may_have_landed(entry) for holder in holders for entry in _entries(holder))


def _aiohttp_repeated(found: Any) -> bool:
    """True if the call that these locals belong to has used up its own repetition."""
    may_repeat = getattr(found.get("self"), "_retry_connection", False)
    return (
        str(found.get("method")).upper() in _AIOHTTP_REPEATS and may_repeat and found.get("retry_persistent_connection") is False
    )


def _earlier(response: object) -> Iterator[object]:
    """The exchanges before this reply: redirects and challenges (`history`), transport retries (`retries.history`)."""
    yield from _entries(getattr(response, "history", None))
    for holder in (response, getattr(response, "raw", None)):
        yield from _entries(getattr(getattr(holder, "retries", None), "history", None))


def _entries(history: object) -> Iterable[object]:
    return history if isinstance(history, (list, tuple)) else ()


def _may_have_landed(entry: object) -> bool:
    """True for an earlier exchange that the table does not clear: a 401 challenge is clear, a 303 is not."""
    error = getattr(entry, "error", None)
    if isinstance(error, BaseException):
        return _verdict(error).kind == "unknown"
    status = getattr(entry, "status_code", None)
    return _by_status(getattr(entry, "status", None) if status is None else status, None).kind == "unknown"
