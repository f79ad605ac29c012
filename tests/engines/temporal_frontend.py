"""A stand-in for Temporal's server: as much of its public gRPC interface as the SDK's client and workers need for workflows with
activities, timers and signals, in one queue and in memory. It is not Temporal: what it shows is that the real SDK, in real worker
processes that are killed and stopped, runs the runner's workflows as that interface asks for, retries included.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CommandType, EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import request_response_pb2 as api
from temporalio.api.workflowservice.v1 import service_pb2_grpc

WORKFLOW_TASK_TIMEOUT = 2.0
LONG_POLL = 2.0
CLOSING = (
    CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
    CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION,
)  # fmt: skip


class Activity:
    """One scheduled activity: waiting for a worker, or with one until its heartbeat is too late."""

    def __init__(self, scheduled: HistoryEvent) -> None:
        self.event = scheduled
        self.attributes = scheduled.activity_task_scheduled_event_attributes
        self.attempt = 0
        self.token = b""
        self.beaten = 0.0
        self.done = False

    def late(self, now: float) -> bool:
        return bool(self.token) and not self.done and now > self.beaten + self.attributes.heartbeat_timeout.ToSeconds()


class Execution:
    """One run of a workflow: its history, and what is on its way."""

    def __init__(self, workflow_id: str, start: Any, kind: str) -> None:
        self.id, self.run_id, self.kind, self.queue = workflow_id, str(uuid.uuid4()), kind, start.task_queue.name
        self.events: list[HistoryEvent] = []
        self.activities: dict[bytes, Activity] = {}
        self.timers: dict[str, tuple[float, int]] = {}
        self.held: list[HistoryEvent] = []
        self.task_scheduled = self.task_started = self.last_completed = 0
        self.started_at = 0.0
        self.task_token = b""
        self.attempt = 1
        self.closed = ""
        began = self.add(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED).workflow_execution_started_event_attributes
        began.workflow_type.name = kind
        began.task_queue.name = self.queue
        began.original_execution_run_id = began.first_execution_run_id = self.run_id
        began.attempt = 1
        began.workflow_task_timeout.FromSeconds(10)
        began.input.CopyFrom(start.input)
        self.need_task()

    def add(self, kind: Any) -> HistoryEvent:
        event = HistoryEvent(event_id=len(self.events) + 1, event_type=kind)
        event.event_time.GetCurrentTime()
        self.events.append(event)
        return event

    def need_task(self) -> None:
        if not self.closed and not self.task_scheduled:
            event = self.add(EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
            event.workflow_task_scheduled_event_attributes.task_queue.name = self.queue
            event.workflow_task_scheduled_event_attributes.attempt = self.attempt
            self.task_scheduled = event.event_id

    def signal(self, name: str, payloads: Any) -> None:
        event = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
        event.event_time.GetCurrentTime()
        event.workflow_execution_signaled_event_attributes.signal_name = name
        event.workflow_execution_signaled_event_attributes.input.CopyFrom(payloads)
        self.held.append(event)
        self.flush()

    def flush(self) -> None:
        """What came while a workflow task was with a worker goes into the history after it."""
        if self.task_started:
            return
        for event in self.held:
            event.event_id = len(self.events) + 1
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:  # its start stands right before it
                event.activity_task_completed_event_attributes.started_event_id = len(self.events)
            self.events.append(event)
        if self.held:
            self.held = []
            self.need_task()

    def ended(self, activity: Activity, result: Any) -> None:
        """An activity's end: its start is written only now, as Temporal does it, so that a retry leaves no trace."""
        activity.done = True
        started = HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
        started.activity_task_started_event_attributes.scheduled_event_id = activity.event.event_id
        started.activity_task_started_event_attributes.attempt = activity.attempt
        completed = HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED)
        completed.activity_task_completed_event_attributes.scheduled_event_id = activity.event.event_id
        completed.activity_task_completed_event_attributes.result.CopyFrom(result)
        for event in (started, completed):
            event.event_time.GetCurrentTime()
        self.held += [started, completed]
        self.flush()


class Frontend(service_pb2_grpc.WorkflowServiceServicer):
    """The server, listening on a port of this machine; `executions` are its workflows, the newest run of each id."""

    def __init__(self, port: int) -> None:
        self.executions: dict[str, Execution] = {}
        self.retried = 0
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(64))
        service_pb2_grpc.add_WorkflowServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._clock.start()

    def close(self) -> None:
        self._stop.set()
        self._clock.join()
        self._server.stop(0.2).wait()

    def _tick(self) -> None:
        """Timers fire, and what a dead worker had is given to another."""
        while not self._stop.wait(0.05):
            now = time.monotonic()
            with self._changed:
                for run in self.executions.values():
                    self._look_at(run, now)
                self._changed.notify_all()

    def _look_at(self, run: Execution, now: float) -> None:
        for activity in run.activities.values():
            if activity.late(now):
                activity.token, self.retried = b"", self.retried + 1
        if run.task_started and now > run.started_at + WORKFLOW_TASK_TIMEOUT:
            event = run.add(EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT).workflow_task_timed_out_event_attributes
            event.scheduled_event_id, event.started_event_id = run.task_scheduled, run.task_started
            run.task_scheduled = run.task_started = 0
            run.attempt += 1
            run.flush()
            run.need_task()
        if not run.task_started and not run.closed:
            for timer, (at, began) in list(run.timers.items()):
                if now >= at:
                    del run.timers[timer]
                    fired = run.add(EventType.EVENT_TYPE_TIMER_FIRED).timer_fired_event_attributes
                    fired.timer_id, fired.started_event_id = timer, began
                    run.need_task()

    def _poll(self, context: Any, take: Any, empty: Any) -> Any:
        deadline = time.monotonic() + LONG_POLL
        with self._changed:
            while context.is_active() and not self._stop.is_set():
                for run in self.executions.values():
                    found = take(run)
                    if found is not None:
                        return found
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) or time.monotonic() > deadline:
                    break
        return empty

    # ------------------------------------------------------------ what it is, and that workers come and go

    def GetSystemInfo(self, request: Any, context: Any) -> Any:
        capabilities = api.GetSystemInfoResponse.Capabilities(
            signal_and_query_header=True, internal_error_differentiation=True, activity_failure_include_heartbeat=True,
            supports_schedules=False, encoded_failure_attributes=True, build_id_based_versioning=False, upsert_memo=True,
            eager_workflow_start=False, sdk_metadata=True,
        )  # fmt: skip
        return api.GetSystemInfoResponse(server_version="stand-in", capabilities=capabilities)

    def DescribeNamespace(self, request: Any, context: Any) -> Any:
        answer = api.DescribeNamespaceResponse()
        answer.namespace_info.name = request.namespace
        return answer

    def ShutdownWorker(self, request: Any, context: Any) -> Any:
        return api.ShutdownWorkerResponse()

    def RecordWorkerHeartbeat(self, request: Any, context: Any) -> Any:
        return api.RecordWorkerHeartbeatResponse()

    def PollNexusTaskQueue(self, request: Any, context: Any) -> Any:
        return self._poll(context, lambda run: None, api.PollNexusTaskQueueResponse())

    # ------------------------------------------------------------ clients

    def StartWorkflowExecution(self, request: Any, context: Any) -> Any:
        with self._changed:
            run = self._started(request)
        return api.StartWorkflowExecutionResponse(run_id=run.run_id, started=True)

    def SignalWithStartWorkflowExecution(self, request: Any, context: Any) -> Any:
        with self._changed:
            run = self._started(request)
            run.signal(request.signal_name, request.signal_input)
            self._changed.notify_all()
        return api.SignalWithStartWorkflowExecutionResponse(run_id=run.run_id, started=True)

    def _started(self, request: Any) -> Execution:
        run = self.executions.get(request.workflow_id)
        if run is None or run.closed:
            run = Execution(request.workflow_id, request, request.workflow_type.name)
            self.executions[request.workflow_id] = run
            self._changed.notify_all()
        return run

    # ------------------------------------------------------------ workflow tasks

    def PollWorkflowTaskQueue(self, request: Any, context: Any) -> Any:
        def take(run: Execution) -> Any:
            if run.closed or run.queue != request.task_queue.name or not run.task_scheduled or run.task_started:
                return None
            started = run.add(EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
            started.workflow_task_started_event_attributes.scheduled_event_id = run.task_scheduled
            run.task_started, run.started_at, run.task_token = started.event_id, time.monotonic(), uuid.uuid4().bytes
            answer = api.PollWorkflowTaskQueueResponse(
                task_token=run.task_token, workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.run_id),
                previous_started_event_id=run.last_completed, started_event_id=run.task_started, attempt=run.attempt,
            )  # fmt: skip
            answer.workflow_type.name = run.kind
            answer.workflow_execution_task_queue.name = run.queue
            answer.history.events.extend(run.events)
            answer.scheduled_time.GetCurrentTime()
            answer.started_time.GetCurrentTime()
            return answer

        return self._poll(context, take, api.PollWorkflowTaskQueueResponse())

    def RespondWorkflowTaskCompleted(self, request: Any, context: Any) -> Any:
        with self._changed:
            run = next((r for r in self.executions.values() if r.task_started and r.task_token == request.task_token), None)
            if run is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "the workflow task has timed out")
            assert run is not None
            if run.held and any(command.command_type in CLOSING for command in request.commands):  # a signal has come meanwhile: the worker has to see it first
                self._failed_task(run)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "UnhandledCommand")
            done = run.add(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
            attributes = done.workflow_task_completed_event_attributes
            attributes.scheduled_event_id, attributes.started_event_id = run.task_scheduled, run.task_started
            attributes.sdk_metadata.CopyFrom(request.sdk_metadata)
            run.last_completed, run.task_scheduled, run.task_started, run.attempt = run.task_started, 0, 0, 1
            for command in request.commands:
                self._carry_out(run, command, done.event_id)
            run.flush()
            self._changed.notify_all()
        return api.RespondWorkflowTaskCompletedResponse()

    def RespondWorkflowTaskFailed(self, request: Any, context: Any) -> Any:
        with self._changed:
            for run in self.executions.values():
                if run.task_started and run.task_token == request.task_token:
                    print(f"workflow task of {run.id} failed: {request.failure.message}\n{request.failure.stack_trace}", flush=True)
                    self._failed_task(run)
        return api.RespondWorkflowTaskFailedResponse()

    def _failed_task(self, run: Execution) -> None:
        event = run.add(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED).workflow_task_failed_event_attributes
        event.scheduled_event_id, event.started_event_id = run.task_scheduled, run.task_started
        run.task_scheduled = run.task_started = 0
        run.attempt += 1
        run.flush()
        run.need_task()
        self._changed.notify_all()

    def _carry_out(self, run: Execution, command: Command, completed: int) -> None:
        match command.command_type:
            case CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK:
                asked = command.schedule_activity_task_command_attributes
                event = run.add(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
                attributes = event.activity_task_scheduled_event_attributes
                attributes.activity_id = asked.activity_id
                attributes.activity_type.CopyFrom(asked.activity_type)
                attributes.task_queue.CopyFrom(asked.task_queue)
                attributes.input.CopyFrom(asked.input)
                attributes.start_to_close_timeout.CopyFrom(asked.start_to_close_timeout)
                attributes.heartbeat_timeout.CopyFrom(asked.heartbeat_timeout)
                attributes.workflow_task_completed_event_id = completed
                run.activities[uuid.uuid4().bytes] = Activity(event)
            case CommandType.COMMAND_TYPE_START_TIMER:
                timer = command.start_timer_command_attributes
                event = run.add(EventType.EVENT_TYPE_TIMER_STARTED)
                event.timer_started_event_attributes.timer_id = timer.timer_id
                event.timer_started_event_attributes.start_to_fire_timeout.CopyFrom(timer.start_to_fire_timeout)
                event.timer_started_event_attributes.workflow_task_completed_event_id = completed
                seconds = timer.start_to_fire_timeout.ToTimedelta().total_seconds()
                run.timers[timer.timer_id] = (time.monotonic() + seconds, event.event_id)
            case CommandType.COMMAND_TYPE_CANCEL_TIMER:
                name = command.cancel_timer_command_attributes.timer_id
                _, began = run.timers.pop(name)
                cancelled = run.add(EventType.EVENT_TYPE_TIMER_CANCELED).timer_canceled_event_attributes
                cancelled.timer_id, cancelled.started_event_id = name, began
                cancelled.workflow_task_completed_event_id = completed
            case CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION:
                run.add(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
                run.closed = "completed"
            case CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION:
                run.add(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW)
                run.closed = "continued"
                asked_new = command.continue_as_new_workflow_execution_command_attributes
                self.executions[run.id] = Execution(run.id, asked_new, asked_new.workflow_type.name)
            case other:
                raise AssertionError(f"the stand-in has no {CommandType.Name(other)}")

    # ------------------------------------------------------------ activities

    def PollActivityTaskQueue(self, request: Any, context: Any) -> Any:
        def take(run: Execution) -> Any:
            if run.queue != request.task_queue.name:
                return None
            for key, activity in run.activities.items():
                if activity.done or activity.token:
                    continue
                activity.attempt += 1
                activity.token, activity.beaten = uuid.uuid4().bytes, time.monotonic()
                attributes = activity.attributes
                answer = api.PollActivityTaskQueueResponse(
                    task_token=key + activity.token, activity_id=attributes.activity_id, activity_type=attributes.activity_type,
                    workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.run_id), input=attributes.input,
                    attempt=activity.attempt, start_to_close_timeout=attributes.start_to_close_timeout,
                    heartbeat_timeout=attributes.heartbeat_timeout, workflow_namespace=request.namespace,
                )  # fmt: skip
                answer.workflow_type.name = run.kind
                for moment in (answer.scheduled_time, answer.started_time, answer.current_attempt_scheduled_time):
                    moment.GetCurrentTime()
                return answer
            return None

        return self._poll(context, take, api.PollActivityTaskQueueResponse())

    def _activity(self, token: bytes, context: Any) -> tuple[Execution, Activity]:
        for run in self.executions.values():
            activity = run.activities.get(token[:16])
            if activity is not None and activity.token == token[16:] and not activity.done:
                return run, activity
        context.abort(grpc.StatusCode.NOT_FOUND, "the activity is not with this worker any more")
        raise AssertionError

    def RecordActivityTaskHeartbeat(self, request: Any, context: Any) -> Any:
        with self._changed:
            self._activity(request.task_token, context)[1].beaten = time.monotonic()
        return api.RecordActivityTaskHeartbeatResponse()

    def RespondActivityTaskCompleted(self, request: Any, context: Any) -> Any:
        with self._changed:
            run, activity = self._activity(request.task_token, context)
            run.ended(activity, request.result)
            self._changed.notify_all()
        return api.RespondActivityTaskCompletedResponse()

    def RespondActivityTaskFailed(self, request: Any, context: Any) -> Any:
        with self._changed:
            print(f"activity failed: {request.failure.message}\n{request.failure.stack_trace}", flush=True)
            self._activity(request.task_token, context)[1].token = b""
        return api.RespondActivityTaskFailedResponse()
