"""What an attempt came to, and what a look-back answered: over constructed exceptions, replies and values."""

from __future__ import annotations

import asyncio
import dataclasses
import email.message
import gc
import http.client
import importlib
import io
import pickle
import smtplib
import socket
import ssl
import subprocess
import sys
import urllib.error
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

import aiohttp
import httpx
import pydantic
import pytest
import requests
import urllib3
import yarl
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from urllib3.util.retry import RequestHistory

from doubtless import clients
from doubtless.outcomes import (
    Absent,
    AlreadyUndone,
    Found,
    NoEffect,
    NotSent,
    NotUndoable,
    Outcome,
    Pending,
    Rejected,
    Several,
    Unclear,
    Unknown,
    classify_raised,
    classify_returned,
    read_answer,
    wait_us,
)

REJECTED = [400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 426, 428]
REJECTED += [431, 451]
UNKNOWN = [200, 204, 301, 302, 303, 304, 307, 308, 408, 409, 420, 425, 430, 449, 460, 498, 499, 500, 501, 502, 503, 504, 599]
STATUS_KINDS = [(s, "rejected") for s in REJECTED] + [(s, "unknown") for s in UNKNOWN] + [(429, "not_sent")]


def raised(exc: BaseException, **over: Any) -> Outcome:
    options = {"single_request": True, "classify": None, "uncertain_before": False, "handle_recorded": False} | over
    return classify_raised(exc, **options)


def returned(value: object, **over: Any) -> Outcome | None:
    options = {"single_request": True, "classify": None, "uncertain_before": False, "handle_recorded": False} | over
    return classify_returned(value, **options)


def judged(value: object, **over: Any) -> Outcome:
    outcome = returned(value, **over)
    assert outcome is not None
    return outcome


# ---- Ways to make one client's exception or reply for a status


def httpx_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://api.test/sheets")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=headers, request=request))


def requests_reply(status: int, headers: dict[str, str] | None = None) -> requests.Response:
    reply = requests.Response()
    reply.status_code = status
    reply.headers.update(headers or {})
    return reply


def requests_error(status: int, headers: dict[str, str] | None = None) -> requests.HTTPError:
    return requests.HTTPError("no", response=requests_reply(status, headers))


def aiohttp_error(status: int, headers: dict[str, str] | None = None, method: str = "POST") -> aiohttp.ClientResponseError:
    url = yarl.URL("https://api.test/sheets")
    info = aiohttp.RequestInfo(url, method, CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers or {}))


def urllib_error(status: int, headers: dict[str, str] | None = None) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in (headers or {}).items():
        message[name] = value
    return urllib.error.HTTPError("https://api.test/sheets", status, "no", message, io.BytesIO())


def urllib3_reply(status: int, headers: dict[str, str] | None = None) -> urllib3.HTTPResponse:
    return urllib3.HTTPResponse(b"", status=status, headers=headers)


def http_reply(status: int, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        theirs.sendall(f"HTTP/1.1 {status} no\r\n{lines}Content-Length: 0\r\n\r\n".encode())
        reply = http.client.HTTPResponse(ours, method="POST")
        reply.begin()
        reply.close()
    return reply


BY_STATUS: list[Callable[..., Any]] = [
    httpx_error, requests_error, aiohttp_error, urllib_error, requests_reply, urllib3_reply, http_reply,
    lambda status, headers=None: httpx.Response(status, headers=headers),
]  # fmt: skip
BY_STATUS_NAMES = [
    "httpx",
    "requests",
    "aiohttp",
    "urllib",
    "requests reply",
    "urllib3 reply",
    "http.client reply",
    "httpx reply",
]


@pytest.mark.parametrize("make", BY_STATUS, ids=BY_STATUS_NAMES)
@pytest.mark.parametrize(("status", "kind"), STATUS_KINDS)
def test_every_status_has_its_kind_whichever_client_brings_it(make: Callable[..., Any], status: int, kind: str) -> None:
    outcome = judged(make(status))
    assert (outcome.kind, outcome.code) == (kind, str(status))


# ---- Exceptions without a status


KEY = ConnectionKey("api.test", 443, True, True, None, None, None)
POOL = urllib3.HTTPConnectionPool("api.test")
CONNECTION = urllib3.connection.HTTPConnection("api.test")
REFUSED = ConnectionRefusedError(111, "Connection refused")
NO_NAME = socket.gaierror(-2, "Name or service not known")
BAD_CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed")
NEW_CONNECTION = urllib3.exceptions.NewConnectionError(CONNECTION, "refused")
NAME_RESOLUTION = urllib3.exceptions.NameResolutionError("api.test", CONNECTION, NO_NAME)
CONNECT_TIMEOUT = urllib3.exceptions.ConnectTimeoutError("too slow")
READ_TIMEOUT = urllib3.exceptions.ReadTimeoutError(POOL, "/", "Read timed out.")
ABORTED = urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))
CERTIFICATE = urllib3.exceptions.SSLError(BAD_CERTIFICATE)
TLS_MIDWAY = urllib3.exceptions.SSLError(ssl.SSLError(1, "bad record mac"))
PROXY_REFUSED = urllib3.exceptions.ProxyError("no proxy", NEW_CONNECTION)
PROXY_RESET = urllib3.exceptions.ProxyError("no proxy", ConnectionResetError())
TOO_MANY_503 = urllib3.exceptions.ResponseError("too many 503 error responses")


def gave_up(reason: Exception) -> urllib3.exceptions.MaxRetryError:
    return urllib3.exceptions.MaxRetryError(POOL, "/", reason)


NEVER_SENT: list[Exception] = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.PoolTimeout("busy"),
    httpx.ProxyError("407 Proxy Authentication Required"),
    httpx.UnsupportedProtocol("no scheme"),
    requests.ConnectionError(gave_up(NEW_CONNECTION)),
    requests.ConnectionError(gave_up(NAME_RESOLUTION)),
    requests.ConnectTimeout(gave_up(CONNECT_TIMEOUT)),
    requests.exceptions.SSLError(gave_up(CERTIFICATE)),
    requests.exceptions.ProxyError(gave_up(PROXY_REFUSED)),
    requests.exceptions.MissingSchema("no scheme"),
    NEW_CONNECTION,
    NAME_RESOLUTION,
    CONNECT_TIMEOUT,
    gave_up(NEW_CONNECTION),
    gave_up(CERTIFICATE),
    urllib3.exceptions.EmptyPoolError(POOL, "busy"),
    PROXY_REFUSED,
    CERTIFICATE,
    aiohttp.ClientConnectorError(KEY, REFUSED),
    aiohttp.ClientConnectorDNSError(KEY, NO_NAME),
    aiohttp.ClientConnectorCertificateError(KEY, BAD_CERTIFICATE),
    aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version number")),
    aiohttp.ClientProxyConnectionError(KEY, REFUSED),
    aiohttp.ServerFingerprintMismatch(b"a", b"b", "api.test", 443),
    aiohttp.ConnectionTimeoutError("slow"),
    aiohttp.NonHttpUrlClientError("ftp://api.test"),
    urllib.error.URLError(REFUSED),
    urllib.error.URLError(NO_NAME),
    urllib.error.URLError(BAD_CERTIFICATE),
    REFUSED,
    NO_NAME,
    BAD_CERTIFICATE,
    smtplib.SMTPNotSupportedError("SMTPUTF8"),
    smtplib.SMTPConnectError(421, b"busy"),
    smtplib.SMTPHeloError(451, b"later"),
    smtplib.SMTPAuthenticationError(454, b"later"),
    smtplib.SMTPSenderRefused(451, b"later", "a@api.test"),
    smtplib.SMTPRecipientsRefused({"a@api.test": (450, b"greylisted"), "b@api.test": (550, b"no such user")}),
]
REFUSED_THERE: list[Exception] = [
    smtplib.SMTPConnectError(554, b"no service"),
    smtplib.SMTPAuthenticationError(535, b"bad password"),
    smtplib.SMTPSenderRefused(550, b"not you", "a@api.test"),
    smtplib.SMTPRecipientsRefused({"a@api.test": (550, b"no such user"), "b@api.test": (553, b"no")}),
    smtplib.SMTPDataError(554, b"spam"),
]
MAY_HAVE_LANDED: list[BaseException] = [
    httpx.ReadError("reset"),
    httpx.ReadTimeout("slow"),
    httpx.WriteError("reset"),
    httpx.WriteTimeout("slow"),
    httpx.CloseError("?"),
    httpx.RemoteProtocolError("disconnected"),
    httpx.LocalProtocolError("Too little data for declared Content-Length"),
    httpx.TooManyRedirects("21"),
    httpx.InvalidURL("?"),
    httpx.DecodingError("gzip"),
    requests.ConnectionError(),
    requests.ConnectionError(ABORTED),
    requests.ConnectionError(READ_TIMEOUT),
    requests.ConnectionError(gave_up(ABORTED)),
    requests.ReadTimeout(READ_TIMEOUT),
    requests.Timeout("slow"),
    requests.HTTPError("made by hand, without a response"),
    requests.exceptions.RetryError(gave_up(TOO_MANY_503)),
    requests.TooManyRedirects("30"),
    requests.JSONDecodeError("no JSON", "", 0),
    requests.exceptions.ChunkedEncodingError("cut"),
    requests.exceptions.InvalidHeader("a reply's Retry-After"),
    requests.exceptions.SSLError(ssl.SSLError(1, "while reading the body")),
    requests.exceptions.ProxyError(gave_up(PROXY_RESET)),
    ABORTED,
    READ_TIMEOUT,
    TLS_MIDWAY,
    gave_up(TLS_MIDWAY),
    gave_up(TOO_MANY_503),
    PROXY_RESET,
    urllib3.exceptions.ClosedPoolError(POOL, "closed"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.SocketTimeoutError("slow"),
    aiohttp.ServerTimeoutError("slow"),
    aiohttp.ClientOSError(104, "reset"),
    aiohttp.ClientConnectionError("connector is closed"),
    aiohttp.ClientConnectionResetError("reset"),
    aiohttp.ClientPayloadError("cut"),
    aiohttp.NonHttpUrlRedirectClientError("ftp://api.test"),
    aiohttp.InvalidUrlRedirectClientError("?"),
    urllib.error.URLError(TimeoutError("slow")),
    urllib.error.URLError(ConnectionResetError(104, "reset")),
    urllib.error.URLError("no host given"),
    http.client.RemoteDisconnected("no reply"),
    http.client.BadStatusLine("x"),
    http.client.IncompleteRead(b"x"),
    ConnectionResetError(104, "reset"),
    BrokenPipeError(32, "pipe"),
    TimeoutError("slow"),
    OSError(113, "No route to host"),
    ssl.SSLError(1, "bad record mac"),
    ssl.SSLEOFError(8, "EOF"),
    smtplib.SMTPDataError(451, b"later"),
    smtplib.SMTPServerDisconnected("closed"),
    smtplib.SMTPResponseException(451, b"to the QUIT after a mail that was taken"),
    smtplib.SMTPRecipientsRefused({}),
    smtplib.SMTPException("?"),
    MemoryError(),
    RecursionError(),
    ValueError("of the step's own code"),
    ExceptionGroup("both", [REFUSED, NO_NAME]),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
]


def label(value: object) -> str:
    return (
        f"{type(value).__module__.partition('.')[0]}-{type(value).__name__}" if isinstance(value, BaseException) else str(value)
    )


@pytest.mark.parametrize("exc", NEVER_SENT, ids=label)
def test_what_failed_before_the_request_left_is_not_sent(exc: Exception) -> None:
    assert raised(exc).kind == "not_sent"


@pytest.mark.parametrize("exc", REFUSED_THERE, ids=label)
def test_a_mail_that_the_server_refused_for_good_is_rejected_with_its_code(exc: Exception) -> None:
    outcome = raised(exc)
    assert outcome.kind == "rejected"
    assert outcome.code.isdigit()


@pytest.mark.parametrize("exc", MAY_HAVE_LANDED, ids=label)
def test_what_may_have_landed_is_unknown(exc: BaseException) -> None:
    assert raised(exc).kind == "unknown"


@pytest.mark.parametrize("exc", [*NEVER_SENT, *REFUSED_THERE, httpx_error(422), aiohttp_error(429)], ids=label)
def test_without_single_request_an_exception_says_nothing_about_the_whole_step(exc: Exception) -> None:
    outcome = raised(exc, single_request=False)
    assert outcome.kind == "unknown"
    assert "single_request" in outcome.detail


@pytest.mark.parametrize("exc", [*NEVER_SENT, *REFUSED_THERE, httpx_error(422), NotSent(), Rejected("no")], ids=label)
def test_after_a_recorded_handle_only_unknown_is_left(exc: Exception) -> None:
    outcome = raised(exc, handle_recorded=True)
    assert outcome.kind == "unknown"
    assert "handle" in outcome.detail


@pytest.mark.parametrize("exc", [*REFUSED_THERE, httpx_error(422), urllib_error(404), Rejected("exists")], ids=label)
def test_a_rejection_while_an_earlier_attempt_is_unknown_is_unknown(exc: Exception) -> None:
    outcome = raised(exc, uncertain_before=True)
    assert outcome.kind == "unknown"
    assert "earlier attempt" in outcome.detail


@pytest.mark.parametrize("exc", [httpx.ConnectError("refused"), httpx_error(429), NotSent()], ids=label)
def test_an_attempt_that_was_not_sent_is_so_whatever_the_earlier_ones_were(exc: Exception) -> None:
    assert raised(exc, uncertain_before=True).kind == "not_sent"


def test_a_subclass_counts_as_what_it_is_and_a_namesake_does_not() -> None:
    mine = type("ApiDown", (httpx.ConnectError,), {})
    namesake = type("ConnectError", (Exception,), {"__module__": "vendored.httpx"})
    assert raised(mine("x")).kind == "not_sent"
    assert raised(namesake("x")).kind == "unknown"


def test_a_wrapper_of_the_users_own_hides_what_it_wraps() -> None:
    try:
        raise ValueError("our own") from REFUSED
    except ValueError as exc:
        assert raised(exc).kind == "unknown"


def left(module: str, function: str, exc: BaseException) -> BaseException:
    """`exc` with a traceback that ends in this function of this module."""
    namespace: dict[str, Any] = {"__name__": module, "exc": exc.with_traceback(None)}
    exec(f"def {function}(): raise exc", namespace)  # noqa: S102 - a frame of a module that is not ours
    try:
        namespace[function]()
    except BaseException as caught:  # noqa: BLE001 - the one just made
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    "error", [ssl.SSLError(1, "no shared cipher"), ConnectionResetError(104, "reset"), TimeoutError("slow")], ids=label
)
@pytest.mark.parametrize(
    "wrap",
    [lambda e: e, urllib.error.URLError, lambda e: requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted", e))],
    ids=["bare", "urllib", "requests"],
)
def test_an_error_that_left_the_tls_handshake_is_not_sent(wrap: Callable[[Any], Exception], error: Exception) -> None:
    assert raised(wrap(left("ssl", "do_handshake", error))).kind == "not_sent"
    assert raised(wrap(left("ssl", "read", error))).kind == "unknown"
    assert raised(wrap(left("mine", "do_handshake", error))).kind == "unknown"


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), ValueError("ours"), MemoryError()], ids=label)
def test_an_interruption_of_the_tls_handshake_stays_unknown(exc: BaseException) -> None:
    assert raised(left("ssl", "do_handshake", exc)).kind == "unknown"


# ---- An earlier request of the client's own


def with_history(response: Any, *earlier: object) -> Any:
    response.history = list(earlier)
    return response


@pytest.mark.parametrize("status", [404, 422, 429])
def test_a_refusal_after_a_redirect_is_unknown(status: int) -> None:
    redirected = with_history(requests_reply(status), requests_reply(303))
    assert raised(requests.HTTPError("no", response=redirected)).kind == "unknown"
    assert judged(with_history(httpx.Response(status), httpx.Response(302))).kind == "unknown"
    moved = aiohttp_error(status)
    moved.history = (requests_reply(307),)  # type: ignore[assignment]  # any object with a status will do
    assert raised(moved).kind == "unknown"


def test_a_refusal_after_a_challenge_is_still_a_refusal() -> None:
    assert judged(with_history(requests_reply(422), requests_reply(401))).kind == "rejected"


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (RequestHistory("PUT", "/", ABORTED, None, None), "unknown"),
        (RequestHistory("PUT", "/", None, 503, None), "unknown"),
        (RequestHistory("PUT", "/", None, 303, "/other"), "unknown"),
        (RequestHistory("PUT", "/", NEW_CONNECTION, None, None), "rejected"),
        (RequestHistory("PUT", "/", None, 429, None), "rejected"),
    ],
)
def test_transport_retries_count_unless_each_of_them_never_left(entry: RequestHistory, kind: str) -> None:
    retries = urllib3.Retry(3, history=(entry,))
    bare = urllib3.HTTPResponse(b"", status=404, retries=retries)
    wrapped = requests_reply(404)
    wrapped.raw = bare
    assert judged(bare).kind == kind
    assert raised(requests.HTTPError("no", response=wrapped)).kind == kind


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_aiohttp_repeats_put_and_delete_itself_so_their_refusals_prove_nothing(method: str) -> None:
    outcome = raised(aiohttp_error(404, method=method))
    assert outcome.kind == "unknown"
    assert "repeats" in outcome.detail
    assert raised(aiohttp_error(404, method="POST")).kind == "rejected"


def test_a_status_that_aiohttp_made_up_for_a_reply_it_could_not_parse_is_unknown() -> None:
    unparsed = aiohttp_error(400)
    unparsed.__cause__ = aiohttp.http_exceptions.BadStatusLine("x")
    assert raised(unparsed).kind == "unknown"


# ---- Waits


SENT_AT = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize("make", BY_STATUS, ids=BY_STATUS_NAMES)
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "30"}, 30_000_000),
        ({"retry-after": " 0 "}, 0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT", "Date": SENT_AT}, 90_000_000),
        ({"Retry-After": "Wed, 21 Oct 2026 07:00:00 GMT", "Date": SENT_AT}, 0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT", "Date": "now"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:29:30 -0000", "Date": SENT_AT}, None),
        ({"Retry-After": "soon", "Date": SENT_AT}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "9" * 40}, 366 * 86_400 * 1_000_000),
        ({}, None),
    ],
)
def test_retry_after_is_read_without_this_machines_clock(
    make: Callable[..., Any], headers: dict[str, str], wait: int | None
) -> None:
    outcome = judged(make(429, headers))
    assert (outcome.kind, outcome.retry_after_us) == ("not_sent", wait)
    assert judged(make(503, headers)).retry_after_us == wait


@pytest.mark.parametrize(
    ("wait", "microseconds"),
    [
        (None, None),
        (0, 0),
        (2, 2_000_000),
        (0.25, 250_000),
        ("1.5", 1_500_000),
        (" 30 ", 30_000_000),
        ("PT30S", 30_000_000),
        ("PT1.5S", 1_500_000),
        ("PT2M", 120_000_000),
        ("P1DT2H", 93_600_000_000),
        ("P1W", 604_800_000_000),
        (timedelta(milliseconds=1), 1_000),
        ("9" * 400, None),
        (1e300, None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
        (-1, None),
        (timedelta(seconds=-1), None),
        (True, None),
        ("soon", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("", None),
        ([1], None),
    ],
)
def test_a_wait_is_seconds_a_duration_or_nothing(wait: Any, microseconds: int | None) -> None:
    assert wait_us(wait) == microseconds
    assert Pending(wait).look_again_us == microseconds
    assert raised(NotSent("busy", retry_after=wait), single_request=False) == (
        "not_sent",
        "NotSent",
        "busy" if wait is None or microseconds is not None else "busy [its retry_after cannot be read as a wait]",
        microseconds,
    )


# ---- Signals and classify


@pytest.mark.parametrize("single_request", [True, False])
@pytest.mark.parametrize(
    ("signal", "outcome"),
    [
        (NotSent(), ("not_sent", "NotSent", "", None)),
        (NotSent("maintenance", retry_after="PT1M"), ("not_sent", "NotSent", "maintenance", 60_000_000)),
        (Rejected("limit", {"max": 500}), ("rejected", "limit", '{"max": 500}', None)),
        (Rejected(HTTPStatus.CONFLICT, "exists", retry_after=1), ("rejected", "409", "exists", 1_000_000)),
        (Rejected(), ("rejected", "Rejected", "", None)),
        (Unknown("half written", [1, 2]), ("unknown", "Unknown", "half written: [1, 2]", None)),
    ],
    ids=str,
)
def test_a_signal_counts_raised_returned_or_from_classify(
    signal: Exception, outcome: tuple[object, ...], single_request: bool
) -> None:
    assert raised(signal, single_request=single_request) == outcome
    assert returned(signal, single_request=single_request) == outcome
    assert raised(ValueError("?"), single_request=single_request, classify=lambda _: signal) == outcome
    assert returned({"code": 7}, single_request=single_request, classify=lambda _: signal) == outcome
    assert raised(pickle.loads(pickle.dumps(signal))) == outcome


def test_the_bare_class_of_a_signal_counts_as_well() -> None:
    assert judged(NotSent).kind == "not_sent"
    assert judged({}, classify=lambda _: Rejected).kind == "rejected"


def test_a_signal_whose_subclass_forgot_its_base_is_still_that_signal() -> None:
    class Closed(NotSent):
        def __init__(self) -> None:
            pass

    assert raised(Closed()) == ("not_sent", "NotSent", "", None)


def test_the_steps_own_signal_is_not_put_to_classify() -> None:
    assert raised(Unknown("half"), classify=lambda _: Rejected("no")).kind == "unknown"
    assert judged(Unknown("half"), classify=lambda _: Rejected("no")).kind == "unknown"


def test_classify_sees_exceptions_replies_and_outputs_and_wins_over_the_table() -> None:
    seen: list[object] = []

    def classify(subject: object) -> object:
        seen.append(subject)
        return Unknown("says classify")

    subjects: list[Any] = [httpx.ConnectError("refused"), httpx.Response(422), {"code": 60012}]
    kinds = [raised(subjects[0], classify=classify).kind, *(judged(subject, classify=classify).kind for subject in subjects[1:])]
    assert kinds == ["unknown"] * 3
    assert seen == subjects


def test_classify_without_an_opinion_leaves_it_to_the_table() -> None:
    assert raised(httpx.ConnectError("refused"), classify=lambda _: None).kind == "not_sent"
    assert judged(httpx.Response(422), classify=lambda _: None).kind == "rejected"
    assert returned({"id": 1}, classify=lambda _: None) is None


def broken(_: object) -> NoReturn:
    raise KeyError("code")


async def forgotten(_: object) -> None: ...


@pytest.mark.parametrize(
    ("classify", "said"),
    [(broken, "KeyError"), (lambda _: True, "bool"), (lambda _: "rejected", "str"), (lambda _: ValueError(), "ValueError"),
     (forgotten, "coroutine")],
)  # fmt: skip
@pytest.mark.parametrize("subject", [httpx.ConnectError("refused"), {"id": 1}, None], ids=label)
def test_a_classify_that_fails_or_answers_nonsense_makes_the_outcome_unknown(
    classify: Callable[[object], object], said: str, subject: object
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = judged(subject, classify=classify)
        gc.collect()
    assert outcome.kind == "unknown"
    assert "classify" in outcome.detail
    assert said in outcome.detail


@pytest.mark.parametrize("exc", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()], ids=label)
def test_classify_cannot_make_an_interruption_into_anything(exc: BaseException) -> None:
    assert raised(exc, classify=lambda _: Rejected("no")).kind == "unknown"


def test_ctrl_c_inside_classify_is_not_swallowed() -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raised(ValueError(), classify=interrupted)


# ---- Returned values


@dataclasses.dataclass
class Sheet:
    id: int


class SheetModel(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize(
    "value", [None, True, 0, "", "x", b"", [], {}, {"status": 500}, (1, 2), Sheet(1), SheetModel(id=1), Found(1)], ids=repr
)
def test_what_is_no_signal_exception_or_reply_is_an_ordinary_output(value: object) -> None:
    assert returned(value) is None
    assert returned(value, single_request=False, handle_recorded=True, uncertain_before=True) is None


@pytest.mark.parametrize("status", [200, 201, 302])
def test_a_returned_reply_is_never_an_output(status: int) -> None:
    for reply in (httpx.Response(status), requests_reply(status), urllib3_reply(status), http_reply(status)):
        outcome = judged(reply)
        assert outcome.kind == "unknown"
        assert "instead of its content" in outcome.detail


def test_a_returned_exception_counts_as_raised() -> None:
    assert judged(httpx.ConnectError("refused")).kind == "not_sent"
    assert judged(ValueError("?")).kind == "unknown"
    assert judged(urllib_error(404)).kind == "rejected"


def test_the_answers_of_a_compensation_carry_what_they_say() -> None:
    assert AlreadyUndone("cancelled by them").detail == "cancelled by them"
    assert NotUndoable("shipped").reason == "shipped"
    assert raised(NotUndoable("shipped")) == ("unknown", "NotUndoable", "NotUndoable: shipped", None)


# ---- Texts


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_detail_is_the_type_and_the_message_cut_to_500_characters() -> None:
    assert raised(ValueError("too much")).detail == "ValueError: too much"
    assert raised(ValueError()).detail == "ValueError"
    long = raised(httpx.ConnectError("x" * 2_000), single_request=False)
    assert len(long.detail) == 500
    assert long.detail.endswith("single_request=True]")
    assert "cannot be read" in raised(Unreadable()).detail


def test_a_text_holds_nothing_that_a_log_row_cannot() -> None:
    outcome = raised(Rejected("a\ud800\0", "b\udfff\0"))
    assert (outcome.code, outcome.detail) == ("a?\ufffd", "b?\ufffd")


def test_a_signals_detail_of_any_type_becomes_text() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    assert raised(Rejected("x", cycle)).detail == "list"
    assert raised(Rejected("x", {"day": {1}})).detail == '{"day": "{1}"}'


def test_secrets_are_masked_before_a_text_is_cut() -> None:
    def mask(text: str) -> str:
        return text.replace("s3cr3t-token", "***")

    outcome = raised(ValueError("x" * 480 + "s3cr3t-token"), mask=mask)
    assert "s3c" not in outcome.detail
    assert raised(Rejected("s3cr3t-token"), mask=mask).code == "***"
    reply = httpx.Response(422)
    assert judged(reply, mask=mask).kind == "rejected"


def test_an_exception_that_cannot_be_read_is_unknown() -> None:
    class Hostile(ConnectionRefusedError):
        @property
        def reason(self) -> str:
            raise RuntimeError

    outcome = raised(Hostile())
    assert outcome.kind == "unknown"
    assert "could not be read: RuntimeError" in outcome.detail


# ---- Look-back answers


ANSWERS = [
    Found({"id": 1}),
    Found(None),
    Several([1, 2]),
    Pending(),
    Pending("PT5S", "queued"),
    Absent(),
    Unclear("?"),
    NoEffect("no"),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_an_answer_said_in_words_is_that_answer(answer: Any) -> None:
    assert read_answer(answer) is answer


def test_two_answers_of_different_kinds_are_never_equal() -> None:
    assert Found("x") != Unclear("x")
    assert Unclear("x") != NoEffect("x")
    assert Absent() == Absent()
    assert Found([1]) == Found([1])
    assert Found(1) != Found(2)


def test_an_answer_matches_by_position_and_shows_what_it_holds() -> None:
    match read_answer({"id": 1}):
        case Found(output):
            assert output == {"id": 1}
        case other:
            pytest.fail(repr(other))
    assert repr(Pending("PT5S", "queued")) == "Pending(look_again='PT5S', note='queued')"


def test_none_is_absent() -> None:
    assert read_answer(None) == Absent()


@pytest.mark.parametrize("value", [{"id": 1}, {"items": []}, MappingProxyType({1: 2}), Sheet(1), SheetModel(id=1)], ids=repr)
def test_a_mapping_a_dataclass_or_a_model_is_found_and_is_the_output(value: object) -> None:
    assert read_answer(value) == Found(value)


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "value",
    [
        [], [{"id": 1}], (), (1,), set(), {}, "", "s-1", b"x", 0, 1, 1.5, True, False, object(), Sheet, SheetModel, Absent, Found,
        NotSent("x"), ValueError("x"), generator(), iter([1]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_plainly_an_answer_is_unclear_with_a_hint(value: object) -> None:
    answer = read_answer(value)
    assert isinstance(answer, Unclear)
    assert "Found(x)" in answer.why


@pytest.mark.parametrize("status", [200, 404])
def test_a_reply_is_no_answer_not_even_inside_found(status: int) -> None:
    for reply in (httpx.Response(status), requests_reply(status), urllib3_reply(status)):
        assert isinstance(read_answer(reply), Unclear)
        assert isinstance(read_answer(Found(reply)), Unclear)


@pytest.mark.parametrize("wrap", [lambda x: x, Found], ids=["bare", "found"])
def test_an_awaitable_is_unclear_and_leaves_no_warning(wrap: Callable[[object], object]) -> None:
    async def query() -> dict[str, int]:
        return {"id": 1}

    gc.collect()  # what other tests have left is not of this one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = read_answer(wrap(query()))
        gc.collect()
    assert isinstance(answer, Unclear)
    assert "await" in answer.why


# ---- The table itself

HOMES: dict[str, ModuleType] = {
    "httpx": httpx,
    "requests": requests.exceptions,
    "urllib3": urllib3.exceptions,
    "aiohttp": aiohttp,
    "urllib": urllib.error,
    "http": http.client,
    "smtplib": smtplib,
    "socket": socket,
    "ssl": ssl,
    "builtins": importlib.import_module("builtins"),
    "asyncio": asyncio,
}


@pytest.mark.parametrize("known", clients.KNOWN, ids=lambda known: f"{known.client}-{known.name}")
def test_every_row_of_the_table_names_a_class_that_decides_by_that_row(known: clients.Known) -> None:
    # aiohttp 3.10 does not export this one at its top level
    cls = getattr(HOMES[known.client], known.name, None) or getattr(aiohttp.client_exceptions, known.name)
    assert clients._rule_of(cls) == known.rule
    assert known.rule in clients.RULES
    assert clients._key(cls) == (known.client, known.name)


def test_the_table_names_no_class_twice() -> None:
    names = [(known.client, known.name) for known in clients.KNOWN]
    assert len(names) == len(set(names))


def test_no_class_of_a_client_is_not_sent_but_these() -> None:
    """A new release's class must not slip in below a listed base unseen."""
    modules = [httpx, requests.exceptions, urllib3.exceptions, aiohttp.client_exceptions, urllib.error, http.client, smtplib]
    found = {
        f"{clients._key(cls)[0]}.{name}"
        for module in [*modules, socket, ssl, importlib.import_module("builtins")]
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, BaseException) and name == cls.__name__
        if clients._rule_of(cls) == "not_sent" and clients._key(cls)[0] in str(module.__name__)
    }
    listed = {f"{known.client}.{known.name}" for known in clients.KNOWN if known.rule == "not_sent"}
    assert found - listed == {"requests.InvalidProxyURL", "aiohttp.ClientSSLError"}
    assert listed <= found


def test_a_429_and_the_rejections_are_all_of_the_statuses_that_are_not_unknown() -> None:
    told = {status for status in range(100, 600) if clients.judge_response(requests_reply(status)).kind != "unknown"}
    assert told == set(REJECTED) | {429}


CLIENT_MODULES = "httpx", "requests", "urllib3", "aiohttp", "smtplib"
LOADED = "print(*sorted({{m.partition('.')[0] for m in sys.modules}} & set({})))"
ALONE = "import sys, types; p = types.ModuleType('doubtless'); p.__path__ = [{!r}]; sys.modules['doubtless'] = p; "


@pytest.mark.parametrize(
    ("before", "modules"),
    [
        ("import sys; import doubtless; ", CLIENT_MODULES),
        # without the package's own imports (asyncio brings ssl)
        (
            ALONE.format(str(Path(clients.__file__).parent)) + "import doubtless.outcomes; ",
            (*CLIENT_MODULES, "ssl", "email", "http", "asyncio", "pydantic"),
        ),
    ],
    ids=["doubtless", "outcomes alone"],
)
def test_importing_it_imports_no_client(before: str, modules: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", before + LOADED.format(modules)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
