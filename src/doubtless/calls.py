"""The vocabulary between a step and its drivers: what is asked of them, what they answer, and what a run offers."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from .blobs import Content
from .effects import Deadline, Policy, StepDefinition
from .errors import DoubtlessError, Parking
from .events import Event, Instant
from .fold import StepRecord
from .log import Flight, TaskLog
from .secrets import Vault
from .store.base import Store

if TYPE_CHECKING:
    import asyncio

    from .turns import Turn

PLAIN = frozenset({dict, list, str, int, float, bool, type(None), tuple})
"""Output types that no client uses for a response."""


class Input:
    """Bound params in their stored form: `text` is what is stored and sent, `key_text` what is hashed, `once` the key."""

    __slots__ = ("digest", "key_text", "once", "text")

    def __init__(self, text: str, key_text: str, digest: bytes, once: str | None = None) -> None:
        self.once = once
        self.text = text
        self.key_text = key_text
        self.digest = digest


class Frame:
    """One running call of user code: what it is of, what the supervisor times, and where its late news goes.

    A step yields one to ask its driver to call `fn` with `kwargs`; it answers with `Returned`, `Raised` or `Overran`.
    `given`: the params that task code asks with (None: the step is settled before task code runs). `record`: what was
    logged when the call was decided. `started`: when. `overrun`: the call was taken away from whoever waits for it.
    `allowed`: by a person, however late it is. `flight`: its row that is on its way to a commit that other tasks share; its
    driver waits for that (`shares`: it can); `landed`: its attempt's row is durable.
    `finished`: what recording it gave or raised, where that task has done it; `interrupted`: what broke in on the wait for it.
    """

    __slots__ = (
        "allowed", "attempt", "deadline", "definition", "done", "entered", "finished", "flight", "fn", "given", "interrupted",
        "kwargs", "landed", "name", "overrun", "path", "policy", "record", "run", "shares", "started", "step_seq", "what",
    )  # fmt: skip

    def __init__(
        self, run: Run, what: Literal["call", "query"], path: str, definition: StepDefinition, step_seq: int, attempt: int,
        policy: Policy, given: Input | None, record: StepRecord | None, started: Instant, fn: Callable[..., Any],
        kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self.run = run
        self.fn = fn
        self.kwargs = kwargs
        self.what = what
        self.path = path
        self.definition = definition
        self.name = definition.name
        self.step_seq = step_seq
        self.attempt = attempt
        self.deadline = 0.0
        self.entered = False
        self.done = False
        self.overrun = False
        self.policy = policy
        self.given = given
        self.record = record
        self.started = started
        self.allowed = False
        self.shares = False
        self.flight: Flight | None = None
        self.landed = True
        self.finished: tuple[tuple[Any] | None, BaseException | None] | None = None
        self.interrupted: BaseException | None = None


class Wait:
    """Ask the driver to wait until this time of the store's clock, or until the log moves.

    `beside`: for so many microseconds of real time: other branches of the pass go on, and it must not park before they wait.
    `seen`: how far the log was read before this was asked; another branch may take in what comes after it.
    `since`: when `until` was reckoned; a clock that is set between then and the wait does not stretch it.
    `branches`: it waits for what may run on the same event loop, which a sync step would keep from going on: there it parks,
    until `later` (the time to look again), or until the business key that it `awaits` moves. `aside`: this place's branch alone.
    """

    __slots__ = ("aside", "awaits", "beside", "branches", "later", "seen", "since", "until", "why")

    def __init__(
        self, until: int, why: str, *, beside: bool = False, seen: int | None = None, branches: bool = False,
        later: int | None = None, awaits: str | None = None, since: Instant | None = None, aside: str | None = None,
    ) -> None:  # fmt: skip
        self.aside = aside
        self.since = since
        self.later = later
        self.awaits = awaits
        self.seen = seen
        self.until = until
        self.why = why
        self.beside = beside
        self.branches = branches


class Returned:
    """The call returned a value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Raised:
    """The call raised; `running`: it still runs, in a thread or task left behind. `entered` False: it never began."""

    __slots__ = ("entered", "error", "running")

    def __init__(self, error: BaseException, running: bool = False, entered: bool = True) -> None:
        self.error = error
        self.running = running
        self.entered = entered


class Overran:
    """The call took longer than its timeout; `running`: it still does, in a thread or task left behind."""

    __slots__ = ("running",)

    def __init__(self, running: bool) -> None:
        self.running = running


class RunChild:
    """Ask the driver to run a child task to its end; it answers with a `ChildEnd`, or parks for what the child waits for.

    `given`: the params with which it is accepted, once; None: it is there already. `path`: the place in the parent's log
    that it belongs to. `undo_by`: of a compensation: until when its writes may be sent; `secret`: which params are secret.
    """

    __slots__ = ("given", "name", "path", "secret", "task_id", "undo_by")

    def __init__(
        self, task_id: str, name: str, path: str, given: Input | None = None, undo_by: Deadline | None = None,
        secret: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.task_id = task_id
        self.name = name
        self.path = path
        self.given = given
        self.undo_by = undo_by
        self.secret = secret


class ChildEnd(NamedTuple):
    """What a child task came to: its final status, the line that says why, its output."""

    status: str
    why: str
    output_ref: str | bytes | None


class ChildRunner(Protocol):
    """Who accepts and runs child tasks for a run (`children.Children`)."""

    def run_to_end(self, this: Any, request: RunChild) -> ChildEnd: ...

    async def arun_to_end(self, this: Any, request: RunChild) -> ChildEnd: ...


Request = Frame | Wait | RunChild


Reply = Returned | Raised | Overran | ChildEnd | None


StepLoop = Generator[Request, Reply, Any]


class Runtime:
    """What a run works with: the parts that `app.py` has put together.

    `find`, `find_task`: the definition of a step, and the signature's half of one of a task. `known`: the names of all
    steps and tasks, to see whether a registered compensation still exists. `patience`: seconds for which a result that the
    store does not take is offered again, before it is spilled. `kept`: results by task that could not even
    be spilled; they live as long as this process does.
    """

    __slots__ = (
        "apause", "call_child", "case_opened", "content", "find", "find_task", "invoke", "kept", "known", "leases", "monotonic",
        "namespace", "patience", "pause", "randomness", "run_child", "store", "vault",
    )  # fmt: skip

    def __init__(
        self,
        *,
        store: Store,
        content: Content,
        namespace: bytes,
        find: Callable[[str], StepDefinition | None],
        find_task: Callable[[str], StepDefinition | None],
        known: Callable[[], Collection[str]],
        vault: Vault,
        monotonic: Callable[[], float],
        pause: Callable[[float, threading.Event | None], None],
        apause: Callable[[float], Awaitable[None]],
        invoke: Callable[[Callable[..., Any], dict[str, Any]], Any],
        case_opened: Callable[[str], None],
        patience: float,
        randomness: Callable[[int], bytes],
    ) -> None:
        self.store = store
        self.leases = store.leases
        self.content = content
        self.namespace = namespace
        self.find = find
        self.find_task = find_task
        self.known = known
        self.vault = vault
        self.monotonic = monotonic
        self.pause = pause
        self.apause = apause
        self.invoke = invoke
        self.case_opened = case_opened
        self.patience = patience
        self.randomness = randomness
        self.kept: dict[str, list[Event]] = {}
        self.call_child: Callable[..., Any] | None = None  # `children.Children.call`: a task called in task code
        self.run_child: ChildRunner | None = None  # the same, as drivers use it


class Run(Protocol):
    """What a step needs of the run that it belongs to (`tasks.TaskRun`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime
    suspect: bool
    lock: threading.Lock
    frames: set[Frame]
    loop: asyncio.AbstractEventLoop | None
    turn: Turn | None

    @property
    def stop(self) -> threading.Event:
        """Set when nothing of it is to wait any more."""

    def park(
        self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None, awaits: str | None = None
    ) -> Parking:
        """Mark the run as parking and return what unwinds it; from now on every step call is refused.

        `awaits`: the business key for whose holder it waits, so that it is due when that one is settled.
        """

    def step_aside(self, path: str, why: str, *, until: int) -> Parking:
        """Let only the branch of this place park: it waits for another one, which may not have begun in this pass."""

    def broken(self, error: DoubtlessError) -> Parking:
        """The store failed under this run: no further effect; return what unwinds it. The caller gets the error."""

    def check(self) -> None:
        """Raise `Parking` when the run parks already."""

    def cancelled(self, path: str) -> bool:
        """Whether nothing new may begin at this place, because the task was cancelled."""

    def park_cancelled(self) -> Parking:
        """Mark the run as parking because the task was cancelled; what has begun is settled first."""

    def may_wait(self, until: int) -> bool:
        """Whether this run waits in place until then."""

    def blocked_by_doubt(self, path: str) -> bool:
        """Whether another write of the task is in doubt, so that no new intent may be written (rule 8)."""

    def left_behind(self, frame: Frame) -> None:
        """Note that this call of a write goes on although nobody waits for it: the task stays owned until it has ended."""

    def late(self, frame: Frame, reply: Returned | Raised) -> None:
        """Take the outcome of a call whose attempt was given up: evidence, and where possible the settlement."""

    def offer_late(self) -> None:
        """Offer again what late calls said and the store did not take: that they have ended is waited for."""


current: contextvars.ContextVar[object] = contextvars.ContextVar("doubtless_current", default=None)
"""The scope (`passes.Scope`) whose task code is running, or the `Frame` of the step that is."""
