"""Doubtless: puts the parts together. The public face.

Only this module reads the environment and makes clocks and threads' owners; everything below is given them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import host
from .blobs import Content
from .calls import Runtime
from .children import Children
from .clocks import Clock, SystemClock
from .drivers import invoke
from .durations import parse_duration
from .effects import StepDefinition
from .errors import StepTableError, UnknownTask, UsageError
from .face.aside import Aside
from .face.decide import Deciding
from .face.declare import Declaring
from .face.engines import Hosting
from .face.look import Looking
from .face.run import Running
from .runs import Runs
from .secrets import Vault
from .steps import Step, Task
from .store import open_store
from .store.base import Head, Store
from .table import StepTable
from .waiting import InTask

if TYPE_CHECKING:
    from .answering import Authorize
    from .inbox import Case
    from .store.blobstore import BlobStore

HINT_STORE = "Doubtless('sqlite:///agent.db') or export DOUBTLESS_STORE=sqlite:///agent.db"


def system_clock() -> Clock:
    """This machine's clocks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return SystemClock(boot)


def state_directory() -> str:
    """Where this machine keeps what has to lie outside a database that others share ($XDG_STATE_HOME)."""
    return os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")


def _read_secret_file(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


class Doubtless(Declaring, Running, Aside, Looking, Deciding, Hosting, InTask):
    """The steps and tasks of one application, and the store that their log lives in.

    Shapes: `url` is ``sqlite:///file.db`` (relative), ``sqlite:////abs/file.db``, ``postgresql://user@host/database``
    (docs/postgres.md); None reads $DOUBTLESS_STORE at first use. `namespace` is set once per store and is part of every key
    (random unless given). `authorize(by, case, answer)` is asked before a person's answer is taken. `secrets` adds
    resolvers by scheme.
    `store_patience`: how long a result is offered again to a store that does not take it, before it is spilled.
    `read_only`: only look: also at a store that is refused as suspect, and never at one that would have to be created.
    `blobs`: where content above 1 MiB lies, ``s3://bucket/prefix`` (which all machines share) or ``file:///path``; None
    reads $DOUBTLESS_BLOBS, else the log says it, else it is a folder beside the database (of PostgreSQL: the database).
    Meaning: thread-safe; the store opens lazily, once per process.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | bytes | None = None,
        authorize: Authorize | None = None,
        secrets: Mapping[str, Callable[[str], str | None]] | None = None,
        store_patience: str | int | float = "PT30S",
        clock: Clock | None = None,
        hooks: Callable[[str], None] | None = None,
        read_only: bool = False,
        blobs: str | None = None,
    ) -> None:
        if blobs is not None and type(blobs) is not str:
            raise UsageError(f"blobs={blobs!r} is no URL; nothing was opened", hint='write blobs="s3://bucket/prefix" or "file:///path"')
        self._url = url
        self._blobs = blobs
        self._read_only = read_only
        self._namespace = namespace.encode() if isinstance(namespace, str) else namespace
        self._authorize = authorize
        self._patience = parse_duration(store_patience) / 1e6
        self._clock = clock
        self._hooks = hooks
        self._vault = Vault({"env": os.environ.get, "file": _read_secret_file, **(secrets or {})})
        self._steps: dict[str, Step[..., Any]] = {}
        self._tasks: dict[str, Task[..., Any]] = {}
        self._table = StepTable(self._tasks)
        self._faults: list[str] = []
        self._lock = host.rlock()
        self._store: Store | None = None
        self._runtime: Runtime | None = None
        self._checked = False
        self._case_hooks: list[Callable[[Case], object]] = []
        self._wake_hooks: list[Callable[[str], object]] = []
        self._runs = Runs(self)
        self._children = Children(self._runs)
        self._open: Callable[..., Store] = open_store  # these three are what `doubtless.testing` puts its own in place of
        self._invoke = invoke
        self._randomness: Callable[[int], bytes] = os.urandom

    # ------------------------------------------------------------ the parts

    @property
    def url(self) -> str:
        """Where the store is. Raises UsageError when nothing says so."""
        url = self._url or os.environ.get("DOUBTLESS_STORE")
        if not url:
            raise UsageError("no durable log: neither a store URL nor $DOUBTLESS_STORE is given", hint=HINT_STORE)
        return url

    @property
    def clock(self) -> Clock:
        """The clock that everything here uses."""
        if self._clock is None:
            self._clock = system_clock()
        return self._clock

    @property
    def store(self) -> Store:
        """The store, opened at first use. Raises StoreRefused with the reason."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is None:
                self._store = self._open(
                    self.url, clock=self.clock.now, namespace=self._namespace, read_only=self._read_only, hooks=self._hooks,
                    state=state_directory(),
                )  # fmt: skip
            return self._store

    @property
    def runtime(self) -> Runtime:
        """The parts that a run works with; the table is validated first. Raises StepTableError, StoreRefused."""
        runtime = self._runtime
        if runtime is not None and self._checked:
            return runtime
        with self._lock:
            self._validate()
            if self._runtime is None:
                store = self.store
                info = store.info()
                runtime = self._parts(store, info.namespace, self._case_opened)
                runtime.call_child, runtime.run_child = self._children.call, self._children
                self._runtime = runtime  # whole: another thread takes it without the lock
            return self._runtime

    def _validate(self) -> None:
        """Refuse a table with faults, before a store is opened or created for it. Raises StepTableError."""
        with self._lock:
            if not self._checked:
                faults = self.check()
                if faults:
                    raise StepTableError(faults)
                self._checked = True

    def _case_opened(self, case_id: str) -> None:
        if not self._case_hooks or self._runtime is None:
            return
        from .inbox import read_case

        store, failed = self._runtime.store, False
        for hook in self._case_hooks:
            try:
                row = store.case(case_id)
                if row is None:
                    return
                hook(read_case(self._runtime, row))
            except Exception as error:  # noqa: BLE001  a hook's error is not the task's, nor the next hook's
                import sys

                failed = True
                said = self._vault.mask(f"{type(error).__name__}: {error}")
                print(f"doubtless: on_case hook failed for {case_id}: {said}", file=sys.stderr)
        if not failed:
            store.notified(case_id)

    def notify(self) -> None:
        """Call the hooks for open cases that no hook has taken yet: what a crash right after a commit left unsaid."""
        runtime = self.runtime
        for row in runtime.store.cases():
            if row.notified_at is None:
                self._case_opened(row.case_id)

    @property
    def reading(self) -> Runtime:
        """The parts for looking only: a table with faults does not stand in the way."""
        with self._lock:
            if self._runtime is not None:
                return self._runtime
            store = self.store
            return self._parts(store, store.info().namespace, lambda case: None)

    def _parts(self, store: Store, namespace: bytes, case_opened: Callable[[str], None]) -> Runtime:
        return Runtime(
            store=store,
            content=Content(store, store.folder, self._elsewhere(store)),
            namespace=namespace,
            find=self._table.get,
            find_task=self._find_task,
            known=lambda: {*self._table, *self._tasks},
            vault=self._vault,
            monotonic=self.clock.monotonic,
            pause=self.clock.pause,
            apause=self.clock.apause,
            invoke=self._invoke,
            case_opened=case_opened,
            patience=self._patience,
            randomness=self._randomness,
        )

    def _elsewhere(self, store: Store) -> BlobStore | None:
        """Where content above 1 MiB lies, if not in the store's own folder; written down before anything goes there.

        Raises: StoreRefused when the log has its content in another place than is given, or where this host does not see it.
        """
        given, info = self._blobs or os.environ.get("DOUBTLESS_BLOBS"), store.info()
        if given is None and info.blobs is None:
            return None
        from .store.blobstore import agreed, open_place, parse_place, refuse_unusable, write_down

        written = info.blobs
        if written is None:
            assert given is not None
            place = parse_place(given)
            if self._read_only:
                return None  # nothing was ever put there
            written = write_down(place, self._randomness(8).hex(), store.place_blobs)
        place = agreed(written, given, info.location)
        if not self._read_only:
            refuse_unusable(place, info.location)
        return open_place(place, lambda: self.clock.now().wall)

    def _find_task(self, name: str) -> StepDefinition | None:
        task = self._tasks.get(name)
        return None if task is None else task.code.definition

    def _settle_within(self, step: str) -> int:
        definition = self._table.get(step)
        return definition.settle_within_us if definition is not None else parse_duration("PT1H")

    def _known(self, task_id: str) -> Head:
        head = self.store.head(task_id)
        if head is None:
            raise UnknownTask(f"there is no task {task_id} in {self.url}", hint="doubtless tasks lists them", task=task_id)
        return head

    def close(self) -> None:
        """Close the store; runs that are going on keep theirs. The app can be used again."""
        with self._lock:
            store, self._store, self._runtime = self._store, None, None
        if store is not None:
            store.close()
