"""Commands for other programs: send-event."""

from __future__ import annotations

import click

from .exits import OK
from .group import Invocation, common, store_option
from .loading import changing, read_json
from .reporting import emit, say
from .typed import typed


@click.command(name="send-event", short_help="Tell a task what it waits for.")
@click.argument("task_id", metavar="ID")
@click.argument("name")
@click.argument("payload", metavar="PAYLOAD")
@click.option("--event-id", metavar="TEXT", help="Sent again under the same id it is the same event. Default: a new one.")
@store_option
@common
@click.pass_obj
def send_event(called: Invocation, *, task_id: str, name: str, payload: str, event_id: str | None, url: str | None) -> int:
    """Tell the task of this ID what its app.wait_for(NAME) waits for, now or later; PAYLOAD is JSON, or @FILE.

    Durable when the command returns; the task goes on by resume, or in a worker. Refused, and then nothing is written: an
    event that is late, one for a task that has ended or is a session, and a payload that does not fit.

    JSON: {"task", "name", "event_id", "event_seq"}: the same when it is sent again.
    """
    given = read_json(payload, "PAYLOAD")
    with changing(called, url) as app:
        received = app.send_event(task_id, name, given, event_id=event_id)
    if called.as_json:
        emit({"task": received.task_id, "name": received.name, "event_id": received.event_id, "event_seq": received.event_seq})
    else:
        next_command = typed("resume", "MODULE:APP", task_id)
        say(f"event {received.event_id} is row {received.event_seq} of task {task_id}\nnext: {next_command}")
    return OK
