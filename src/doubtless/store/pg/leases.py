"""Leases: how long each claim of this process lasts, renewed by a thread that no step can block."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from ... import host
from ...errors import StaleEpoch
from ...events import Instant
from ..owners import Who

Renew = Callable[[Sequence[tuple[str, int, int]]], set[tuple[str, int]]]
"""Renews claims (task, epoch, microseconds from the server's now); which of them still stand."""


class Held(NamedTuple):
    """A claim of this process. `until`: this machine's boot-time clock, before the lease ends; `margin`: of its next renewals,
    how much longer than the lease they are, so that the next write need not wait for one."""

    epoch: int
    until: int
    margin: int


class Asked(NamedTuple):
    """What was asked for in these queues under these epochs, when, and for how long; `handed`: the claims that are known.

    The connection was lost meanwhile, so that it was sent again, and the first statement may still come through.
    """

    owner: str
    queues: tuple[str, ...] | None
    epochs: list[int]
    sent: Instant
    granted: int
    handed: set[tuple[str, int]]


class Leases:
    """This process's claims in one store.

    Meaning: `until` is counted from before the request that made the lease, by a clock that does not stop while the machine
    sleeps; so a claim that looks alive here is alive for everybody.
    """

    def __init__(
        self, renew: Renew, local: Callable[[], Instant], lease_us: int, randomness: Callable[[int], bytes], *, beats: bool
    ) -> None:
        self.held: dict[str, Held] = {}
        self.lease_us = lease_us
        self.longest = 0  # of the writes that were checked so far, at most a lease
        self.fault = ""
        self._renew = renew
        self._local = local
        self._randomness = randomness
        self._beats = beats
        self.forsake()
        _LEASES.add(self)

    def forsake(self) -> None:
        """In the child of a fork (and at first): nothing is held, and the name is another one."""
        self.held.clear()
        self.name = ""
        self._lock = host.lock()
        self._wake = host.event()
        self._thread: threading.Thread | None = None

    def owner(self) -> str:
        """This process's name as an owner: its number, host and program, and something that no other process has."""
        if not self.name:
            program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
            self.name = f"{host.pid()}-{self._randomness(6).hex()}@{host.name()}:{program[:60]}"
        return self.name

    # ------------------------------------------------------------ claims

    @property
    def grant(self) -> int:
        """How long a new claim lasts: a lease beyond the longest write so far."""
        return self.lease_us + self.longest

    def hold(self, task_id: str, epoch: int, sent: Instant, granted: int) -> None:
        """Enter a claim that was granted for so long after `sent`."""
        with self._lock:
            self.held[task_id] = Held(epoch, sent.boot + granted, self.longest)
            if self._beats and self._thread is None:
                self._thread = host.thread(target=self._beat_on, name="doubtless-leases", daemon=True)
                self._thread.start()

    def let_go(self, task_id: str, epoch: int) -> None:
        """Forget a claim, unless a newer one has taken its place."""
        with self._lock:
            held = self.held.get(task_id)
            if held is not None and held.epoch == epoch:
                del self.held[task_id]

    def owns(self, task_id: str, epoch: int | None) -> bool:
        """Whether this process has made this claim and has not lost it yet, as far as it knows."""
        held = self.held.get(task_id)
        return held is not None and held.epoch == epoch

    def outlive(self, task_id: str, epoch: int, timeout_us: int) -> None:
        """Return when the claim's lease surely outlasts a call of this length (`base.Leases`)."""
        held = self.held.get(task_id)
        if held is not None and held.epoch == epoch and held.until - self._local().boot > timeout_us:
            return
        if held is None or held.epoch != epoch:
            self._lost(task_id)
        if timeout_us > self.longest:
            self.longest = min(timeout_us, self.lease_us)
        self.renew([(task_id, held)], timeout_us)
        if not self.owns(task_id, epoch):
            self._lost(task_id)

    def _lost(self, task_id: str) -> NoReturn:
        raise StaleEpoch(
            f"task {task_id}: this run's lease is over and another owner has the task; nothing was sent",
            hint=f"stop; doubtless show {task_id}",
            task=task_id,
        )

    def renew(self, claims: Sequence[tuple[str, Held]], least: int = 0) -> None:
        """Renew claims, in one round trip; those that are not this process's any more are forgotten."""
        sent = self._local()
        wanted = [(task, held.epoch, self.lease_us + max(held.margin, self.longest, least)) for task, held in claims]
        stand = self._renew(wanted)
        with self._lock:
            for task, epoch, granted in wanted:
                now = self.held.get(task)
                if now is None or now.epoch != epoch:
                    continue
                if (task, epoch) in stand:
                    self.held[task] = Held(epoch, max(now.until, sent.boot + granted), self.longest)
                else:
                    del self.held[task]

    # ------------------------------------------------------------ the heart

    def beat(self) -> None:
        """Renew all claims once; what cannot be renewed now is tried again soon, and `fault` says why."""
        claims = list(self.held.items())
        if not claims:
            return
        try:
            self.renew(claims)
            self.fault = ""
        except Exception as error:  # whatever it is: without this thread every lease would end  # noqa: BLE001
            self.fault = str(error)

    def _beat_on(self) -> None:
        pause = self.lease_us / 3e6
        while True:
            self._wake.wait(pause if not self.fault else pause / 5)
            with self._lock:
                if not self.held:
                    self._thread = None
                    return
                self._wake.clear()
            self.beat()


def describe(owner: str) -> Who:
    """Who an owner is, as its name says."""
    process, _, place = owner.partition("@")
    number = process.partition("-")[0]
    machine, _, program = place.partition(":")
    return Who(int(number) if number.isdigit() else 0, machine, program, 0)


_LEASES: weakref.WeakSet[Leases] = weakref.WeakSet()


def _forsake_all() -> None:
    for leases in _LEASES:
        leases.forsake()


os.register_at_fork(after_in_child=_forsake_all)
