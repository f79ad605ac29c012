"""The guards of commits that are shared: name, file, old text, new text, tests (`guards.Guard`)."""

from __future__ import annotations

TABLES, PG = "store/sql/postgres/0001.sql", "store/pg/sharing.py"
STORE = "store/test_sharing.py::test_"
LOOP = "postgres/test_loop_commits.py::test_"
ASIDE = "tasks/test_loop_aside.py::test_"
SHARED = "tasks/test_shared_commits.py::test_"
WIRE = "postgres/test_sharing.py::test_"

SHARING: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "of several rows that share a commit none is written where one is refused",
        "store/sharing.py",
        '            cursor.execute("ROLLBACK TO one")',
        "            pass",
        (STORE + "what_is_refused_of_several_rows_is_refused_whole_and_harms_no_other",),
    ),
    (
        "a task that is begun has an owner from its first commit on",
        "store/sqlite.py",
        "(*head, begun.digest, now.wall))",
        "(*head._replace(owner=None, epoch=None), begun.digest, None))",
        (STORE + "tasks_that_are_begun_share_a_commit_and_of_one_id_there_is_one",),
    ),
    (
        "a task whose run is cancelled while it is begun is given back",
        "adrivers.py",
        "            hand_back(store, begun)\n",
        "            pass\n",
        (SHARED + "cancelled_while_it_is_begun_a_task_is_recorded_and_nobodys",),
    ),
    (
        "PostgreSQL: rows that change heads are held against a freeze of their step",
        "store/sql/postgres/0001.sql",
        "        AND (guard IS NULL OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step IN (guard, '*'))) AS fits\n",
        "        AS fits\n",
        (STORE + "of_rows_that_change_heads_what_is_refused_is_refused_whole_and_harms_no_other",),
    ),
    (
        "PostgreSQL: of shared rows only those count as written that the server names",
        PG,
        "            if _key(ticket.event) in written:",
        "            if failed is None:",
        (STORE + "a_row_whose_place_is_taken_is_refused_alone",),
    ),
    (
        "PostgreSQL: the epoch of each shared row is checked as it is written",
        TABLES,
        "    WHERE (SELECT task.epoch FROM {{schema}}.tasks AS task WHERE task.task_id = given.task_id) = given.epoch\n",
        "    WHERE true\n",
        (WIRE + "rows_of_an_old_owner_and_of_a_frozen_step_are_refused_by_the_server_itself",),
    ),
    (
        "PostgreSQL: a frozen step's shared row is left out",
        TABLES,
        "        given.guard IS NULL\n        OR NOT EXISTS",
        "        true\n        OR NOT EXISTS",
        (WIRE + "rows_of_an_old_owner_and_of_a_frozen_step_are_refused_by_the_server_itself",),
    ),
    (
        "PostgreSQL: a shared row whose place is taken is left out",
        TABLES,
        "    ON CONFLICT DO NOTHING\n    RETURNING task_id, event_seq",
        "    RETURNING task_id, event_seq",
        (
            WIRE + "of_a_shared_statement_whose_connection_is_cut_each_row_is_in_the_log_once",
            WIRE + "a_shared_statement_is_one_round_trip_when_a_place_in_it_is_taken",
        ),
    ),
    (
        "PostgreSQL: after a lost connection shared rows are looked up",
        PG,
        "            written.update(self._standing(events))",
        "            pass",
        (WIRE + "rows_that_stand_after_a_cut_are_found_by_one_look_and_not_sent_again",),
    ),
    (
        "PostgreSQL: a row that cannot be written leaves those beside it to themselves",
        PG,
        "        except (Refusal, StoreError, ValueError):",
        "        except Refusal:",
        (WIRE + "a_row_that_the_schema_refuses_does_not_harm_those_beside_it",),
    ),
    (
        "PostgreSQL: rows whose shared commit was broken in on are appended anew",
        PG,
        "                        ticket.alone = ticket.done = True",
        "                        ticket.done = True",
        (WIRE + "a_signal_in_the_middle_of_a_shared_commit_loses_and_doubles_no_row_of_the_others",),
    ),
    (
        "PostgreSQL: an event loop does not stand still for a commit",
        "turns.py",
        "if self._store.far or halved or (count >= FEW and not self._in_step):",
        "if halved or (count >= FEW and not self._in_step):",
        (LOOP + "an_event_loop_goes_on_while_its_rows_are_committed_and_what_comes_meanwhile_shares_the_next_commit",),
    ),
    (
        "SQLite: of one statement for many rows that is refused, each row is written by itself",
        "store/sharing.py",
        "                    self._write_all(cursor, tickets)\n        except",
        "                    raise\n        except",
        (ASIDE + "one_row_that_is_refused_takes_none_of_a_large_commit_with_it",),
    ),
    (
        "SQLite: the rows of a large commit are guarded by a freeze",
        "store/sql/sqlite.sql",
        "AND (column22 IS NULL OR NOT EXISTS (SELECT 1 FROM freezes))",
        "",
        (STORE + "a_row_of_a_step_that_is_frozen_meanwhile_is_refused_alone",),
    ),
    (
        "SQLite: the rows of a large commit are those of their owners",
        "store/sql/sqlite.sql",
        "WHEN (SELECT epoch FROM tasks WHERE task_id = column1) = column19",
        "WHEN 1",
        (STORE + "a_row_of_an_owner_that_was_replaced_is_refused_alone",),
    ),
    (
        "SQLite: an event loop does not stand still for many rows",
        "turns.py",
        "if self._store.far or halved or (count >= FEW and not self._in_step):",
        "if self._store.far:",
        (ASIDE + "of_rows_put_down_together_half_are_committed_beside_the_loop_which_goes_on",),
    ),
    (
        "SQLite: a few rows cost no change of threads",
        "turns.py",
        "if self._store.far or halved or (count >= FEW and not self._in_step):",
        "if True:",
        (ASIDE + "a_few_rows_of_a_file_are_committed_in_place",),
    ),
    (
        "tasks that do the same are committed in two halves",
        "turns.py",
        "(count + 1) // 2 if halved else count",
        "count",
        (ASIDE + "of_rows_put_down_together_half_are_committed_beside_the_loop_which_goes_on",),
    ),
    (
        "a loop that never rests gives way to a commit",
        "turns.py",
        "self._loop.call_later(LATE, self._give_way, LATE)",
        "self._loop.call_later(3600, self._give_way, LATE)",
        (ASIDE + "a_loop_that_never_rests_lets_a_commit_say_that_it_is_over",),
    ),
    (
        "a job that never says that it has gone holds no loop up",
        "turns.py",
        "                self._gone.set()\n",
        "",
        (ASIDE + "a_job_that_fails_before_it_has_gone_holds_nobody_up",),
    ),
    (
        "PostgreSQL: rows that share a statement follow the row before",
        TABLES,
        "      AND (\n        SELECT 1\n        FROM {{schema}}.events AS before\n        WHERE before.task_id = given.task_id\n          AND before.event_seq = given.event_seq - 1\n      ) = 1\n",
        "",
        (WIRE + "what_no_row_of_a_log_may_be_is_not_written_with_others_either",),
    ),
    (
        "PostgreSQL: rows that share a statement are chained",
        TABLES,
        "      AND given.prev_hash IS NOT NULL\n",
        "",
        (WIRE + "what_no_row_of_a_log_may_be_is_not_written_with_others_either",),
    ),
    (
        "PostgreSQL: rows that share a statement bear a time",
        TABLES,
        "      AND coalesce(given.started_at, given.finished_at) IS NOT NULL\n",
        "",
        (WIRE + "what_no_row_of_a_log_may_be_is_not_written_with_others_either",),
    ),
    (
        "PostgreSQL: rows that share a statement are no task's",
        TABLES,
        "      AND given.kind NOT IN ({{task_kinds}})\n",
        "",
        (WIRE + "what_no_row_of_a_log_may_be_is_not_written_with_others_either",),
    ),
    (
        "PostgreSQL: rows that share a statement bear a step's status",
        TABLES,
        "      AND (given.status IN ({{step_statuses}})) IS NOT FALSE\n",
        "",
        (WIRE + "what_no_row_of_a_log_may_be_is_not_written_with_others_either",),
    ),
    (
        "the thread that commits for a loop ends",
        "turns.py",
        "                        self._alive = False\n                        return\n",
        "                        pass\n",
        (LOOP + "the_thread_that_commits_for_a_loop_ends_when_there_is_nothing_to_do",),
    ),
    (
        "a shorter timeout that begins later is looked at in its time",
        "turns.py",
        "        if at < self._at:",
        "        if self._at == inf:",
        ("tasks/test_loop_times.py::test_of_calls_side_by_side_each_is_given_up_at_its_own_time",),
    ),
    (
        "a call that has ended is forgotten by its loop's timer",
        "turns.py",
        "        self._ends.pop(wake, None)",
        "        pass",
        ("tasks/test_loop_times.py::test_calls_that_have_ended_leave_one_timer_and_nothing_to_look_at",),
    ),
    (
        "PostgreSQL: threads share the statement of whoever comes next",
        "store/pg/writing.py",
        "if not self._sharing.turn.acquire(False):",
        "if not self._sharing.turn.acquire(True):",
        (WIRE + "threads_that_append_while_another_one_is_on_its_way_share_the_next_statement",),
    ),
)
