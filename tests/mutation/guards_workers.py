"""The guards of workers: name, file, old text, new text, tests (`guards.Guard`)."""

from __future__ import annotations

TABLES, LITE, WORKER = "store/sql/postgres/0001.sql", "store/sql/sqlite.sql", "worker.py"
DUE = "store/test_due.py::test_"
QUEUES = "tasks/test_queues.py::test_"
PLANS = "postgres/test_plans.py::test_"
WAKES = "workers/test_wakes.py::test_"
TURN = "workers/test_workers.py::test_what_a_killed_worker_left_has_its_turn_before_younger_tasks_however_many_are_ready"

WORKERS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "PostgreSQL: a look passes over what another worker is claiming",
        TABLES,
        "    FOR UPDATE SKIP LOCKED\n  ), timed",
        "  ), timed",
        (DUE + "a_task_that_another_worker_is_claiming_is_passed_over_without_waiting",),
    ),
    (
        "PostgreSQL: no worker takes a task before its time",
        TABLES,
        "      AND wake_at <= v_now\n      AND strpos(task_id, '/') = 0\n      AND {{wanted}}",
        "      AND wake_at IS NOT NULL\n      AND strpos(task_id, '/') = 0\n      AND {{wanted}}",
        (DUE + "nothing_is_given_before_its_time_and_the_next_time_is_told",),
    ),
    (
        "PostgreSQL: a look reads what is due and not what waits: without a time",
        TABLES,
        "CREATE INDEX tasks_free ON {{schema}}.tasks (priority, created_at, task_id) WHERE {{free}} AND strpos(task_id, '/') = 0;\n",
        "",
        (PLANS + "what_workers_ask_reads_what_is_due_and_not_what_waits",),
    ),
    (
        "PostgreSQL: a look reads what is due and not what waits: with a time",
        TABLES,
        "CREATE INDEX tasks_by_wake ON {{schema}}.tasks (wake_at) WHERE wake_at IS NOT NULL;\n",
        "",
        (PLANS + "what_workers_ask_reads_what_is_due_and_not_what_waits",),
    ),
    (
        "PostgreSQL: a look reads what is due and not what waits: children",
        TABLES,
        "CREATE INDEX tasks_free_children ON {{schema}}.tasks (task_id) WHERE {{free}} AND strpos(task_id, '/') > 0;\n",
        "",
        (PLANS + "what_workers_ask_reads_what_is_due_and_not_what_waits",),
    ),
    (
        "PostgreSQL: a look reads what is due and not what waits: names that nobody knows",
        TABLES,
        "CREATE INDEX tasks_by_name ON {{schema}}.tasks (task_name) WHERE {{live}} AND strpos(task_id, '/') = 0;\n",
        "",
        (PLANS + "what_workers_ask_reads_what_is_due_and_not_what_waits",),
    ),
    (
        "PostgreSQL: an accept tells the workers",
        TABLES,
        "  PERFORM {{schema}}.tell_1();\n  RETURN true;",
        "  RETURN true;",
        (WAKES + "a_worker_is_woken_by_what_another_process_does_and_not_by_its_next_look",),
    ),
    (
        "PostgreSQL: a thaw tells the workers",
        TABLES,
        "DELETE FROM {{schema}}.freezes WHERE step = c->>'step';\n        PERFORM {{schema}}.tell_1();",
        "DELETE FROM {{schema}}.freezes WHERE step = c->>'step';",
        (WAKES + "a_worker_is_woken_by_what_another_process_does_and_not_by_its_next_look",),
    ),
    (
        "PostgreSQL: a business key that is settled tells the workers",
        TABLES,
        "IF EXISTS (SELECT 1 FROM {{schema}}.tasks WHERE awaits = c->>'once') THEN",
        "IF false THEN",
        (WAKES + "the_end_of_a_step_that_holds_a_business_key_wakes_a_worker_whose_task_waits_for_it",),
    ),
    (
        "a listener listens at the direct URL",
        "store/pg/listening.py",
        "direct = self._place.direct",
        'direct = ""',
        (WAKES + "behind_a_pooler_a_worker_listens_at_the_direct_url",),
    ),
    (
        "a listener looks for what it missed",
        "store/pg/listening.py",
        "self._wake()  # of what was said before nobody has heard",
        "pass",
        (WAKES + "a_listener_whose_connection_was_cut_listens_again_and_looks_for_what_it_missed",),
    ),
    (
        "a worker takes only its queues",
        LITE,
        "AND (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2)))\n  AND (\n    (wake_at IS NULL AND status <> 'needs_human')\n"
        "    OR wake_at <= ?4",
        "AND (\n    (wake_at IS NULL AND status <> 'needs_human')\n    OR wake_at <= ?4",
        (QUEUES + "a_worker_takes_only_its_queues_and_the_smaller_priority_first",),
    ),
    (
        "a worker claims no more than it has places for",
        WORKER,
        "room = self.concurrency - len(self._running())",
        "room = 1000",
        (WAKES + "a_full_worker_holds_no_claims_of_tasks_that_it_does_not_run",),
    ),
    (
        "after the wait for a thread the lease is looked at again",
        "acalls.py",
        'if frame.what == "call" and frame.policy.effect != Effect.READ and not may_call(frame):',
        "if False:",
        ("postgres/test_takeover.py::test_a_write_that_waited_for_a_thread_until_another_owner_had_its_task_is_not_sent",),
    ),
    (
        "a call that is given up gives its thread's place back",
        "acalls.py",
        "        free.release()",
        "        pass",
        ("tasks/test_seats.py::test_calls_that_hang_and_are_given_up_give_their_seats_back",),
    ),
    (
        "sync calls of async tasks have a bounded number of threads",
        "turns.py",
        "asyncio.Semaphore(SEATS)",
        "asyncio.Semaphore(1000)",
        ("tasks/test_seats.py::test_no_more_sync_calls_run_at_once_than_there_are_seats",),
    ),
    (
        "a child whose parent could not be claimed does not count as tried",
        WORKER,
        "                self._forget_tried(task_id)\n                return None",
        "                return None",
        ("simulation/test_found.py::test_a_child_whose_parent_could_not_be_claimed_is_tried_again_by_the_worker",),
    ),
    (
        "what a late call said and the store did not take is offered again",
        "executor.py",
        "                run.offer_late()\n",
        "",
        ("simulation/test_found.py::test_a_late_refusal_that_the_store_does_not_take_is_offered_again",),
    ),
    (
        "what a dead owner left keeps its turn among what is ready",
        WORKER,
        "        turns.sort(key=lambda turn: (turn[0].priority, turn[0].created_at, turn[0].task_id))\n",
        "",
        (TURN,),
    ),
    (
        "a claim for which there is no place any more is given back",
        WORKER,
        "            for claim in left.values():\n                self.app._runs.give_back(claim)\n",
        "            pass\n",
        (TURN,),
    ),
    (
        "a branch that waits for the key of another branch steps aside for it",
        "holders.py",
        "    if aside is not None:\n        raise run.step_aside(aside, why, until=until)\n",
        "",
        ("keys/test_keys_together.py::test_a_branch_that_waits_for_the_key_of_another_branch_lets_it_go_on",),
    ),
    (
        "a sync branch on a loop that waits for another branch's key steps aside for it",
        "drivers.py",
        "if request.aside is not None and request.later is not None:",
        "if False:",
        ("keys/test_keys_together.py::test_a_branch_that_waits_for_the_key_of_another_branch_lets_it_go_on",),
    ),
    (
        "a branch that has stepped aside calls nothing more",
        "passes.py",
        "        scope.aside = True\n",
        "",
        ("keys/test_keys_together.py::test_a_branch_that_waits_for_the_key_of_another_branch_lets_it_go_on",),
    ),
    (
        "a late read that no table has is left to the code",
        "tasks.py",
        "for step, r in named if step is not None or r.effect != Effect.READ]",
        "for step, r in named]",
        ("simulation/test_found.py::test_a_step_of_the_library_that_a_stopped_process_gave_late_is_no_error_of_the_code",),
    ),
    (
        "a late reply about an unsettled step makes its task ready",
        "latenews.py",
        '{} if record is None or record.settled else {"wake": True}',
        "{}",
        ("people/test_one_answer.py::test_a_task_whose_doubt_a_late_reply_answers_is_ready_for_any_worker_and_waits_for_nobody",),
    ),
    (
        "a run that breaks for no known reason is tried again later, not at once",
        WORKER,
        "elif escaped and isinstance(error, Exception) and not isinstance(error, DoubtlessError):",
        "elif False:",
        ("tasks/test_tasks_worker.py::test_a_run_that_breaks_for_no_known_reason_is_said_and_keeps_no_other_from_its_turn",),
    ),
    (
        "what task code says is stored as a row can hold it",
        "conclusion.py",
        "return storable(value) if isinstance(value, str) else value",
        "return value",
        ("postgres/test_app.py::test_what_no_row_can_hold_in_the_words_of_task_code_keeps_no_task_from_its_end",),
    ),
    (
        "a business key with a NUL is refused",
        "once.py",
        'if "\\0" not in text:',
        "if True:",
        ("postgres/test_app.py::test_a_business_key_with_a_nul_is_refused_before_anything_is_written",),
    ),
)
