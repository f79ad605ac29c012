"""The classifiers against real clients and a real server that refuses, resets, hangs, redirects and counts.

The server counts the requests that reached it whole. So "not sent" is an assertion on a number (none), and so is
"one attempt is one request on the wire".
"""

from __future__ import annotations

import asyncio
import contextlib
import email.message
import gc
import http.client
import os
import re
import shutil
import smtplib
import socket
import ssl
import struct
import subprocess
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
import requests
import urllib3

from doubtless.outcomes import Outcome, classify_raised, classify_returned

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SHORT = 0.4  # seconds: longer than a loopback round trip on a busy machine needs, short enough for a test
STATUSES = [400, 401, 403, 404, 408, 409, 422, 425, 429, 500, 502, 503, 504]
KIND_OF = {429: "not_sent"} | dict.fromkeys([400, 401, 403, 404, 422], "rejected")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


class Server:
    """A TCP server that hands each connection to `talk` in a thread of its own, and ends with them all."""

    scheme = "tcp"

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.stopped = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.listen_no_more()
        for connection in self.connections:  # a client may keep its end open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    def listen_no_more(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept(); close() alone would not
        self.listener.close()

    def accept(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self.serve, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(5)
            if self.tls is None:
                self.talk(connection)
                return
            with self.tls.wrap_socket(connection, server_side=True) as wrapped:
                self.talk(wrapped)

    def talk(self, connection: socket.socket) -> None:
        raise NotImplementedError


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Http(Server):
    """Does what the path says. `hello` is what it does to a TLS client while it has no certificate itself."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.seen: list[str] = []
        self.hello = "answer in plain text"

    def url(self, path: str, scheme: str = "") -> str:
        return f"{scheme or ('https' if self.tls else 'http')}://127.0.0.1:{self.port}{path}"

    def talk(self, connection: socket.socket) -> None:
        if self.tls is None and connection.recv(1, socket.MSG_PEEK) == b"\x16":
            connection.recv(65536)
            if self.hello == "reset":
                reset(connection)
            elif self.hello == "answer in plain text":
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        with connection.makefile("rb") as reader:
            while line := reader.readline():
                method, path, _ = line.decode("latin-1").split(" ")
                headers = http.client.parse_headers(reader)
                reader.read(int(headers.get("Content-Length", 0)))
                self.seen.append(f"{method} {path}")
                if not self.answer(connection, path):
                    return

    def answer(self, connection: socket.socket, path: str) -> bool:
        """Answer one request; True while the connection stays."""
        verb, _, argument = path.strip("/").partition("/")
        if verb == "drop-first":  # lose the first reply, then answer with the status named in the path
            verb = "close" if sum(path in seen for seen in self.seen) == 1 else "status"
        match verb:
            case "status":
                body = b'{"id": 1}'
                extra = "Retry-After: 7\r\n" if argument in ("429", "503") else ""
                head = f"HTTP/1.1 {argument} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
                connection.sendall(head.encode() + body)
                return True
            case "redirect":
                connection.sendall(
                    f"HTTP/1.1 303 X\r\nLocation: http://127.0.0.1:{argument}/\r\nContent-Length: 0\r\n\r\n".encode()
                )
                return True
            case "last":  # answer, keep the connection, take no other one: the next request meets a dead end
                self.listen_no_more()
                connection.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n{}")
                return True
            case "garbage":
                connection.sendall(b"\x00\x01\x02\r\n\r\n")
            case "cut":
                connection.sendall(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
            case "broken-tls":  # plain text where a TLS record belongs: a TLS error, but long after the handshake
                os.write(connection.fileno(), b"HTTP/1.1 400 Bad Request\r\n\r\n")
            case "reset":
                reset(connection)
            case "slow":  # a reply whose body does not end
                connection.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{")
                self.stopped.wait(10)
            case "hang":
                self.stopped.wait(10)
            case _:  # "close": the request was read and is never answered
                pass
        return False


@pytest.fixture
def server() -> Iterator[Http]:
    with Http() as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate that nobody trusts")
    place = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(place), "-out", f"{place}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    place.write_text(place.read_text() + Path(f"{place}.crt").read_text())
    return place


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Http]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Http(context) as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def unclosed_sockets_of_the_clients() -> Iterator[None]:
    """Asyncio clients leave transports behind when a connection fails as their loop ends; that is theirs, and ends here."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# ---- The clients, each used as its users use it, with its own defaults for redirects and retries


def by_httpx(url: str, method: str, timeout: float, verify: bool) -> object:
    return httpx.request(method, url, json={}, timeout=timeout, verify=verify).raise_for_status().json()


def by_httpx_async(url: str, method: str, timeout: float, verify: bool) -> object:
    async def send() -> object:
        async with httpx.AsyncClient(timeout=timeout, verify=verify) as client:
            return (await client.request(method, url, json={})).raise_for_status().json()

    return asyncio.run(send())


def by_httpx_following(url: str, method: str, timeout: float, verify: bool) -> object:
    reply = httpx.request(method, url, json={}, timeout=timeout, verify=verify, follow_redirects=True)
    return reply.raise_for_status().json()


def by_requests(url: str, method: str, timeout: float, verify: bool) -> object:
    reply = requests.request(method, url, json={}, timeout=timeout, verify=verify)
    reply.raise_for_status()
    return reply.json()


def by_urllib3(url: str, method: str, timeout: float, verify: bool) -> object:
    with urllib3.PoolManager(cert_reqs="CERT_REQUIRED" if verify else "CERT_NONE") as pool:
        return pool.request(method, url, json={}, timeout=timeout)


def by_urllib3_without_retries(url: str, method: str, timeout: float, verify: bool) -> object:
    with urllib3.PoolManager(cert_reqs="CERT_REQUIRED" if verify else "CERT_NONE") as pool:
        return pool.request(method, url, json={}, timeout=timeout, retries=False)


def by_aiohttp(url: str, method: str, timeout: float, verify: bool) -> object:
    async def send() -> object:
        limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        async with (
            aiohttp.ClientSession(timeout=limits, raise_for_status=True) as session,
            session.request(method, url, json={}, ssl=verify) as reply,
        ):
            return await reply.json()

    return asyncio.run(send())


def by_aiohttp_reply(url: str, method: str, timeout: float, verify: bool) -> object:
    async def send() -> object:
        limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        async with aiohttp.ClientSession(timeout=limits) as session, session.request(method, url, json={}, ssl=verify) as reply:
            await reply.read()
            return reply

    return asyncio.run(send())


def by_urllib(url: str, method: str, timeout: float, verify: bool) -> object:
    request = urllib.request.Request(url, data=b"{}", method=method)
    with urllib.request.urlopen(request, timeout=timeout, context=None if verify else unverified()) as reply:
        reply.read()
        return reply


def by_http_client(url: str, method: str, timeout: float, verify: bool) -> object:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context() if verify else unverified()
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, parts.path, body=b"{}")
        reply = connection.getresponse()
        reply.read()
        return reply


Client = Callable[[str, str, float, bool], object]
CLIENTS: list[Client] = [
    by_httpx, by_httpx_async, by_httpx_following, by_requests, by_urllib3, by_urllib3_without_retries,
    by_aiohttp, by_aiohttp_reply, by_urllib, by_http_client,
]  # fmt: skip
FOLLOWING = [by_httpx_following, by_requests, by_urllib3, by_aiohttp, by_aiohttp_reply, by_urllib]


def name_of(value: object) -> str:
    return getattr(value, "__name__", str(value)).removeprefix("by_")


each_client = pytest.mark.parametrize("client", CLIENTS, ids=name_of)


def judged(call: Callable[[], object], *, single_request: bool = True) -> Outcome:
    options: dict[str, Any] = {
        "single_request": single_request, "classify": None, "uncertain_before": False, "handle_recorded": False,
    }  # fmt: skip
    try:
        value = call()
    except Exception as exc:  # noqa: BLE001 - whatever the client raises is what is under test
        return classify_raised(exc, **options)
    outcome = classify_returned(value, **options)
    assert outcome is not None, f"{value!r} passed as an ordinary output"
    return outcome


def attempt(client: Client, url: str, *, method: str = "POST", timeout: float = 5.0, verify: bool = True) -> Outcome:
    return judged(lambda: client(url, method, timeout, verify))


# ---- Before the request


@each_client
def test_a_closed_port_is_not_sent(client: Client) -> None:
    outcome = attempt(client, f"http://127.0.0.1:{closed_port()}/")
    assert outcome.kind == "not_sent", outcome


@each_client
def test_a_name_that_does_not_exist_is_not_sent(client: Client) -> None:
    outcome = attempt(client, "http://no-such-host.invalid/")
    assert outcome.kind == "not_sent", outcome


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port whose accept queue is full: the kernel drops further SYNs, so that connecting runs into its timeout."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                yield listener.getsockname()[1]
                return
        pytest.skip("this kernel takes connections beyond the backlog")


@each_client
def test_a_connect_timeout_is_not_sent_where_the_client_tells_it_apart(client: Client, full_port: int) -> None:
    outcome = attempt(client, f"http://127.0.0.1:{full_port}/", timeout=0.2)
    bare = client in (by_urllib, by_http_client)  # a TimeoutError that does not say of what
    assert outcome.kind == ("unknown" if bare else "not_sent"), outcome


@each_client
@pytest.mark.parametrize("hello", ["answer in plain text", "close", "reset"])
def test_a_tls_handshake_that_fails_is_not_sent(server: Http, client: Client, hello: str) -> None:
    server.hello = hello
    outcome = attempt(client, server.url("/status/200", "https"))
    assert outcome.kind == "not_sent", outcome
    assert server.seen == []


@each_client
def test_a_certificate_that_nobody_trusts_is_not_sent(tls_server: Http, client: Client) -> None:
    outcome = attempt(client, tls_server.url("/status/200"))
    assert outcome.kind == "not_sent", outcome
    assert tls_server.seen == []


def test_a_pool_without_a_free_connection_is_not_sent(server: Http) -> None:
    with (
        httpx.Client(limits=httpx.Limits(max_connections=1), timeout=httpx.Timeout(5, pool=0.05)) as client,
        client.stream("GET", server.url("/slow")),
    ):
        assert judged(lambda: client.post(server.url("/close"))).kind == "not_sent"
    with urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        held = pool.urlopen("GET", "/slow", preload_content=False)
        assert judged(lambda: pool.urlopen("POST", "/close", pool_timeout=0.05)).kind == "not_sent"  # type: ignore[arg-type]  # its stub says int
        held.close()

    async def wait_for_a_free_one() -> object:
        limits = aiohttp.ClientTimeout(connect=0.05)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), timeout=limits) as session,
            session.get(server.url("/slow")),
        ):
            return await session.post(server.url("/close"))

    assert judged(lambda: asyncio.run(wait_for_a_free_one())).kind == "not_sent"
    assert server.seen == ["GET /slow"] * 3


# ---- A reply


@each_client
@pytest.mark.parametrize("status", STATUSES)
def test_each_status_has_its_kind(server: Http, client: Client, status: int) -> None:
    outcome = attempt(client, server.url(f"/status/{status}"))
    assert (outcome.kind, outcome.code) == (KIND_OF.get(status, "unknown"), str(status))
    assert outcome.retry_after_us == (7_000_000 if status in (429, 503) else None)
    assert len(server.seen) == 1


@each_client
def test_a_reply_is_an_output_only_as_its_content(server: Http, client: Client) -> None:
    url = server.url("/status/200")
    if client in (by_urllib3, by_urllib3_without_retries, by_aiohttp_reply, by_urllib, by_http_client):
        outcome = attempt(client, url)
        assert outcome.kind == "unknown"
        assert "instead of its content" in outcome.detail
    else:
        assert client(url, "POST", 5.0, True) == {"id": 1}


# ---- After the request


@each_client
@pytest.mark.parametrize("path", ["/reset", "/close", "/garbage", "/cut", "/hang"])
def test_a_lost_reply_is_unknown_and_one_attempt_is_one_request(server: Http, client: Client, path: str) -> None:
    outcome = attempt(client, server.url(path), timeout=SHORT if path == "/hang" else 5.0)
    assert outcome.kind == "unknown", outcome
    assert server.seen == [f"POST {path}"]


@each_client
@pytest.mark.parametrize("path", ["/reset", "/close", "/broken-tls"])
def test_a_lost_reply_behind_tls_is_unknown(tls_server: Http, client: Client, path: str) -> None:
    with pytest.warns(urllib3.exceptions.InsecureRequestWarning) if client in UNVERIFIED_WARNS else contextlib.nullcontext():
        outcome = attempt(client, tls_server.url(path), verify=False)
    assert outcome.kind == "unknown", outcome
    # urllib3's default retries leave a POST alone after a reset, but not after a TLS error: it is sent four times
    times = 4 if client is by_urllib3 and path == "/broken-tls" else 1
    assert tls_server.seen == [f"POST {path}"] * times


UNVERIFIED_WARNS = (by_requests, by_urllib3, by_urllib3_without_retries)


@each_client
def test_without_single_request_none_of_it_counts(server: Http, client: Client) -> None:
    for url in (f"http://127.0.0.1:{closed_port()}/", server.url("/status/422")):
        assert judged(lambda url=url: client(url, "POST", 5.0, True), single_request=False).kind == "unknown"  # type: ignore[misc]


# ---- Requests that the client makes itself


@pytest.mark.parametrize("client", FOLLOWING, ids=name_of)
def test_a_post_that_was_redirected_to_a_dead_end_is_unknown(server: Http, client: Client) -> None:
    outcome = attempt(client, server.url(f"/redirect/{closed_port()}"))
    assert outcome.kind == "unknown", outcome
    assert len(server.seen) == 1


@pytest.mark.parametrize("client", FOLLOWING, ids=name_of)
def test_a_post_that_was_redirected_to_a_404_is_unknown(server: Http, client: Client) -> None:
    with Http() as other:
        outcome = attempt(client, server.url(f"/redirect/{other.port}"), timeout=SHORT)
        assert outcome.kind == "unknown", outcome
        outcome = attempt(client, server.url(f"/redirect/{other.port}/status/404"))
        assert outcome.kind == "unknown", outcome


@pytest.mark.parametrize("client", [by_urllib3, by_aiohttp, by_aiohttp_reply], ids=name_of)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_refusal_after_the_clients_own_second_request_is_unknown(server: Http, client: Client, method: str) -> None:
    outcome = attempt(client, server.url("/drop-first/404"), method=method)
    assert len(server.seen) == 2, "this client no longer repeats by itself: the rule may go"
    assert outcome.kind == "unknown", outcome


@pytest.mark.parametrize(
    "client", [by_httpx, by_httpx_async, by_requests, by_urllib3_without_retries, by_urllib, by_http_client], ids=name_of
)
def test_the_other_clients_send_a_put_once(server: Http, client: Client) -> None:
    assert attempt(client, server.url("/drop-first/404"), method="PUT").kind == "unknown"
    assert len(server.seen) == 1


def test_a_transport_retry_that_ends_at_a_closed_port_is_unknown(server: Http) -> None:
    """The first PUT was read and lost; the client's second one finds nobody. Nothing was sent *last*: that is not enough."""

    def urllib3_put() -> object:
        with urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as pool:
            pool.request("GET", "/last")
            return pool.request("PUT", "/close", body=b"{}")

    outcome = judged(urllib3_put)
    assert server.seen == ["GET /last", "PUT /close"]
    assert "NewConnectionError" in outcome.detail, outcome
    assert outcome.kind == "unknown", outcome


def test_a_put_that_aiohttp_repeats_against_a_closed_port_is_unknown(server: Http) -> None:
    async def put() -> object:
        async with aiohttp.ClientSession() as session:
            async with session.get(server.url("/last")) as reply:
                await reply.read()
            async with session.put(server.url("/close"), data=b"{}") as reply:
                return reply

    outcome = judged(lambda: asyncio.run(put()))
    assert server.seen == ["GET /last", "PUT /close"]
    assert outcome.code == "ClientConnectorError", outcome
    assert outcome.kind == "unknown", outcome


def test_retries_of_requests_that_all_failed_to_connect_are_not_sent() -> None:
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=2))
        outcome = judged(lambda: session.post(f"http://127.0.0.1:{closed_port()}/", timeout=5))
    assert outcome.kind == "not_sent", outcome


# ---- Mail


class Smtp(Server):
    """Answers each verb as `replies` says; "drop" closes instead. `mails` are the contents that came whole."""

    def __init__(self, **replies: str) -> None:
        super().__init__()
        self.replies = {"DATA": "354", "QUIT": "221", "GREETING": "220"} | replies
        self.mails: list[bytes] = []

    def talk(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            verb = "GREETING"
            while (reply := self.replies.get(verb, "250")) != "drop":
                connection.sendall(f"{reply} x\r\n".encode())
                if verb == "DATA" and reply == "354":
                    self.mails.append(b"".join(iter(reader.readline, b".\r\n")))
                    verb = "END"
                    continue
                line = reader.readline()
                if not line or verb == "QUIT":
                    return
                found = re.match(rb"[A-Za-z]+", line)
                verb = found.group().decode().upper() if found else ""


def send_mail(port: int, host: str = "127.0.0.1") -> object:
    message = email.message.EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "s"
    message.set_content("hello")
    with smtplib.SMTP(host, port, timeout=5, local_hostname="localhost") as client:
        return client.send_message(message)


@pytest.mark.parametrize(
    ("replies", "kind", "mails"),
    [
        ({"GREETING": "421"}, "not_sent", 0),
        ({"GREETING": "554"}, "rejected", 0),
        ({"GREETING": "drop"}, "unknown", 0),
        ({"EHLO": "500", "HELO": "501"}, "rejected", 0),
        ({"MAIL": "451"}, "not_sent", 0),
        ({"MAIL": "550"}, "rejected", 0),
        ({"RCPT": "450"}, "not_sent", 0),
        ({"RCPT": "421"}, "not_sent", 0),
        ({"RCPT": "550"}, "rejected", 0),
        ({"RCPT": "drop"}, "unknown", 0),
        ({"DATA": "503"}, "rejected", 0),
        ({"END": "554"}, "rejected", 1),
        ({"END": "451"}, "unknown", 1),
        ({"END": "drop"}, "unknown", 1),
        ({"QUIT": "451"}, "unknown", 1),
    ],
    ids=str,
)
def test_a_mail_is_refused_before_or_after_its_content(replies: dict[str, str], kind: str, mails: int) -> None:
    with Smtp(**replies) as post_office:
        outcome = judged(lambda: send_mail(post_office.port))
    assert outcome.kind == kind, outcome
    assert len(post_office.mails) == mails


def test_a_mail_server_that_cannot_be_reached_is_not_sent(server: Http) -> None:
    assert judged(lambda: send_mail(closed_port())).kind == "not_sent"
    assert judged(lambda: send_mail(25, "no-such-host.invalid")).kind == "not_sent"
    assert judged(lambda: smtplib.SMTP_SSL("127.0.0.1", server.port, timeout=5, local_hostname="localhost")).kind == "not_sent"
