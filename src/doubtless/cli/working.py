"""The command that runs other people's tasks: worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import click

from ..errors import UsageError
from ..worker import MOST
from .exits import OK
from .group import Invocation, common, target_argument
from .loading import aside, load_app
from .reporting import emit, note
from .running import ready
from .signals import CODES


@click.command(short_help="Run what was started, what is due, and what a person has settled, until a signal.")
@target_argument
@click.option("--concurrency", metavar="N", type=int, default=4, show_default=True, help="At most so many tasks at once.")
@click.option("--queues", metavar="A,B", help="Only tasks that were started in these queues. Default: of all queues.")
@click.option("--poll", metavar="PT5S", help="The longest pause between two looks. Default: PT5S, with SQLite PT1S.")
@common
@click.pass_obj
def worker(called: Invocation, *, target: str, concurrency: int, queues: str | None, poll: str | None) -> int:
    """Run the store's tasks, any number of such processes at once: what was started, what is due, what a person has settled.

    Goes on until SIGTERM, SIGINT or SIGHUP: then no new step begins, the writes that are being called are finished and
    recorded, and the exit code is 0. A second signal ends it at once: what is in flight is in doubt, and is settled by whoever
    takes the task over. Tasks whose code the app does not have are left alone, and named once.

    JSON, at the end: {"runs", "left_alone": [ids], "errors": [texts]}.
    """
    if not 1 <= concurrency <= MOST:
        raise UsageError(f"--concurrency {concurrency}: from one task at a time to {MOST:,}")
    names = None if queues is None else [name.strip() for name in queues.split(",")]
    from ..face.run import check_queue

    for name in names or ():
        check_queue(name)
    longest = None
    if poll is not None:
        from ..durations import parse_duration

        longest = parse_duration(poll) / 1e6
    app = ready(load_app(called, target))
    made = app.worker(concurrency=concurrency, queues=names)
    made.say, made.longest = note, longest
    me = f"worker {os.getpid()}"
    with aside(called.as_json), signals(me) as came:
        made.start()
        where = f", queues {', '.join(names)}" if names else ""
        note(f"{me}: {app.store.info().location}{where}, {concurrency} at a time")
        first = came.get()
        note(f"{me}: {signal.Signals(first).name}: draining, no new step begins; a second signal ends it at once")
        made.stop(None)
        note(f"{me}: drained after {made.ran} runs")
    if called.as_json:
        emit({"runs": made.ran, "left_alone": sorted(made.unknown), "errors": [str(error) for error in made.errors]})
    return OK


@contextmanager
def signals(me: str) -> Iterator[SimpleQueue[int]]:
    """Give the first signal that asks this process to end; the second one ends it there and then.

    Meaning: they are read by a thread, as bytes that the interpreter's own handler writes: no handler runs in the middle of
    anything, and none has to wait for the main thread.
    """
    came: SimpleQueue[int] = SimpleQueue()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda number, frame: None) for number in CODES if heeded(number)}
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_read, args=(reader, came, me), name="doubtless-signals", daemon=True)
    thread.start()
    try:
        yield came
    finally:
        signal.set_wakeup_fd(waker)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()


def heeded(number: int) -> bool:
    """A signal that was ignored stays ignored, as under nohup."""
    return signal.getsignal(number) != signal.SIG_IGN


def _read(reader: int, came: SimpleQueue[int], me: str) -> None:
    seen = False
    while byte := os.read(reader, 1):  # ends when the other end is closed
        number = byte[0]
        if number not in CODES:
            continue
        if seen:
            os.write(2, f"doubtless: {me}: ended at once; what was in flight is in doubt until it is settled\n".encode())
            os._exit(CODES[number])
        seen = True
        came.put(number)
    os.close(reader)
