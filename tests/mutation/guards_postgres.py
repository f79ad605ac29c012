"""The guards of the PostgreSQL store: name, file, old text, new text, tests (`guards.Guard`)."""

from __future__ import annotations

TABLES, FOLD = "store/sql/postgres/0001.sql", "fold.py"
LEASES = "postgres/test_leases.py::test_"
TAKEOVER = "postgres/test_takeover.py::test_"
OPENING = "postgres/test_opening.py::test_"
MIGRATE = "postgres/test_migrations.py::test_"
CUT = "postgres/test_connections.py::test_"
APPEND = "postgres/test_appending.py::test_"
LOG = "store/test_log.py::test_"
UF = "unit/test_fold.py::test_"
HOSTS = "blobs/test_hosts.py::test_"
GC = "blobs/test_gc.py::test_"

POSTGRES: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "a task that parks while somebody looks is not a dead owner's: in the inbox",
        "inbox.py",
        "        head, alive = store.owned(head)\n",
        "        alive = store.owner_alive(head.owner)\n",
        (TAKEOVER + "a_task_that_parks_while_somebody_looks_at_it_is_not_said_to_be_a_dead_owner_s",),
    ),
    (
        "a task that parks while somebody looks is not a dead owner's: as it is shown",
        "timeline.py",
        "    head, owner_alive = runtime.store.owned(head)\n",
        "    owner_alive = runtime.store.owner_alive(head.owner)\n",
        (TAKEOVER + "a_task_that_parks_while_somebody_looks_at_it_is_not_said_to_be_a_dead_owner_s",),
    ),
    (
        "PostgreSQL: a migration that breaks with old code is refused to it",
        "store/pg/opening.py",
        "    if version.needs > known:",
        "    if False:",
        (MIGRATE + "a_migration_that_breaks_with_old_code_is_refused_to_it_when_it_begins_and_while_it_runs_and_nothing_is_lost",),
    ),
    (
        "PostgreSQL: a migration breaks with old code unless it says otherwise",
        "store/pg/schema.py",
        "int(said[1]) if said else number",
        "int(said[1]) if said else 1",
        (MIGRATE + "a_migration_that_breaks_with_old_code_is_refused_to_it_when_it_begins_and_while_it_runs_and_nothing_is_lost",),
    ),
    (
        "PostgreSQL: what has run before is not run again",
        "store/pg/migrate.py",
        "known[before.number :]",
        "known[max(before.number, 1) - 1 :]",
        (MIGRATE + "of_two_processes_that_migrate_at_once_one_does_it_and_the_other_finds_it_done",),
    ),
    (
        "PostgreSQL: all migrations are one transaction",
        "store/pg/migrate.py",
        "        with connection.transaction():\n",
        "        with __import__('contextlib').nullcontext():\n",
        (MIGRATE + "a_migration_that_fails_in_the_middle_leaves_the_schema_before_it_whole_and_says_so",),
    ),
    (
        "PostgreSQL: a migration does not wait for a table for ever",
        "store/pg/migrate.py",
        '    connection.execute(q["patience"], (PATIENCE,))\n',
        "",
        (MIGRATE + "a_migration_does_not_keep_everybody_waiting_behind_somebody_who_reads_for_long",),
    ),
    (
        "a host that does not see the folder of the log's content is refused at start",
        "store/chosen.py",
        "    if not os.path.isdir(folder_of(place)):",
        "    if False:",
        (HOSTS + "a_host_that_does_not_see_the_folder_of_the_log_s_content_is_refused_and_told_where_it_lies",),
    ),
    (
        "a folder that has gone away is no empty folder",
        "store/chosen.py",
        "        if not os.path.isdir(self.path):",
        "        if False:",
        (HOSTS + "a_folder_that_is_not_there_any_more_makes_no_result_lost_and_no_write_sent_again",),
    ),
    (
        "of two places that are written down at once one stands",
        "store/sql/postgres.sql",
        "SET blobs = $1\nWHERE blobs IS NULL",
        "SET blobs = $1",
        (HOSTS + "of_two_hosts_that_begin_at_once_one_place_stands_and_the_other_leaves_no_folder_behind",),
    ),
    (
        "PostgreSQL: what is too large for one value is refused before it is sent",
        "store/pg/content.py",
        "if len(content) > LARGEST:",
        "if False:",
        (HOSTS + "a_result_that_the_database_does_not_take_is_said_with_what_takes_it_and_is_not_lost",),
    ),
    (
        "PostgreSQL: gc deletes nothing that a snapshot names",
        "store/sql/postgres.sql",
        "UNION ALL\nSELECT NULL, NULL, content, NULL\nFROM {{schema}}.snapshots",
        "",
        (GC + "what_a_spilled_result_or_a_snapshot_names_is_kept",),
    ),
    (
        "PostgreSQL: the epoch is checked as one row is written",
        TABLES,
        "WHERE EXISTS (SELECT 1 FROM {{schema}}.tasks WHERE task_id = p_task_id AND epoch = p_epoch)\n",
        "WHERE true\n",
        (LEASES + "an_owner_that_slept_through_its_lease_is_refused_and_its_late_result_is_kept_as_evidence",),
    ),
    (
        "PostgreSQL: the epoch is checked as several rows are written",
        TABLES,
        "IF p_owned AND NOT EXISTS (",
        "IF false AND NOT EXISTS (",
        (LEASES + "an_owner_that_slept_through_its_lease_is_refused_and_its_late_result_is_kept_as_evidence",),
    ),
    (
        "PostgreSQL: a frozen step takes no attempt",
        TABLES,
        "IF EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step = p_step OR step = '*') THEN",
        "IF false THEN",
        (LOG + "a_frozen_step_takes_no_new_attempt_until_it_is_thawed",),
    ),
    (
        "PostgreSQL: a frozen step takes no attempt that is written by itself",
        TABLES,
        "    AND (p_guard IS NULL OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step = p_guard OR step = '*'))\n",
        "",
        (LOG + "a_frozen_step_takes_no_new_attempt_until_it_is_thawed",),
    ),
    (
        "PostgreSQL: no row is written by itself where a commit is not durable",
        TABLES,
        "    AND current_setting('synchronous_commit') <> 'off'\n",
        "",
        (APPEND + "a_row_is_not_written_in_a_session_whose_commits_are_not_durable",),
    ),
    (
        "PostgreSQL: a row that no log holds is refused by the database",
        TABLES,
        "  IF (NEW.event_seq = 1) <> (NEW.prev_hash IS NULL)\n    OR",
        "  IF",
        (APPEND + "the_database_refuses_a_row_that_no_log_holds",),
    ),
    (
        "PostgreSQL: a statement that was prepared elsewhere is sent unprepared",
        "store/pg/link.py",
        "                    self.prepares = False\n",
        "                    pass\n",
        (APPEND + "a_pooler_that_looks_like_the_server_itself_takes_every_row_once",),
    ),
    (
        "PostgreSQL: the log has no gap",
        TABLES,
        "IF NEW.event_seq > 1\n",
        "IF false\n",
        (LOG + "a_row_that_leaves_a_gap_is_refused_as_moved",),
    ),
    (
        "PostgreSQL: no row is changed or removed",
        TABLES,
        "  RAISE EXCEPTION 'the log is append-only: no % of %', TG_OP, TG_TABLE_NAME USING ERRCODE = 'DBLAO';\n",
        "  RETURN NULL;\n",
        (OPENING + "no_statement_of_a_superuser_changes_or_removes_what_is_recorded",),
    ),
    (
        "PostgreSQL: nothing is written where a commit is not durable",
        TABLES,
        "  IF current_setting('synchronous_commit') = 'off' OR",
        "  IF false OR",
        (OPENING + "a_server_that_is_made_undurable_while_it_is_used_takes_no_append_any_more",),
    ),
    (
        "PostgreSQL: a server whose commits are not durable is refused at the connection",
        "store/pg/opening.py",
        'if commit == "off":',
        "if False:",
        (OPENING + "a_server_whose_commits_are_not_durable_is_refused_with_the_reason",),
    ),
    (
        "PostgreSQL: a claim is a compare-and-set",
        TABLES,
        "    AND epoch IS NOT DISTINCT FROM p_seen\n    AND (owner IS NULL OR lease_until <= v_until - p_grant);",
        ";",
        ("store/test_owners.py::test_of_many_threads_that_claim_one_task_one_gets_it",),
    ),
    (
        "right before a write is called its lease is looked at",
        "executor.py",
        "        if leases is not None and not outlives(leases, frame):\n            return None\n",
        "",
        (TAKEOVER + "an_owner_whose_task_was_taken_over_between_intent_and_call_sends_nothing",),
    ),
    (
        "the lease outlasts the step's timeout",
        "store/pg/leases.py",
        "held.until - self._local().boot > timeout_us:",
        "held.until - self._local().boot > 0:",
        (LEASES + "right_before_a_write_the_lease_is_renewed_only_when_it_is_shorter_than_the_call_may_be",),
    ),
    (
        "a lease that is gone lets nothing be sent",
        "store/pg/leases.py",
        "        if not self.owns(task_id, epoch):\n            self._lost(task_id)\n",
        "",
        (TAKEOVER + "an_owner_whose_task_was_taken_over_between_intent_and_call_sends_nothing",),
    ),
    (
        "leases end by the server's clock",
        "store/pg/clock.py",
        "return Instant(self._wall + here.boot - self._boot, here.boot)",
        "return here",
        (LEASES + "leases_are_counted_by_the_servers_clock_whatever_this_machines_clock_says",),
    ),
    (
        "with leases the last possible send is the lease's end and the timeout",
        FOLD,
        "[timeout_us if a.leased else 0 for a in",
        "[0 for a in",
        (UF + "where_a_lease_said_that_the_owner_lived_its_last_send_was_before_the_lease_s_end_and_the_timeout",),
    ),
    (
        "PostgreSQL: a log that lacks the last event that was seen is refused",
        "store/pg/opening.py",
        "if found.event_seq and not log.has(",
        "if False and not log.has(",
        (OPENING + "a_database_restored_from_an_old_backup_is_refused_with_the_command_to_type",),
    ),
    (
        "PostgreSQL: what this process has written is looked for at each connection",
        "store/pg/opening.py",
        "if not why and newest is not None:",
        "if False and newest is not None:",
        (OPENING + "a_process_that_is_running_notices_that_the_database_behind_its_url_was_replaced_by_an_older_one",),
    ),
    (
        "PostgreSQL: a promoted standby is not believed",
        "store/pg/opening.py",
        'if found.timeline != server.timeline and place.failover != "synchronous":',
        "if False:",
        (OPENING + "a_standby_is_refused_for_writes_and_can_be_looked_at_and_after_a_promotion_a_person_is_asked",),
    ),
    (
        "PostgreSQL: an append whose fate is unknown is compared before it counts as refused",
        "store/postgres.py",
        "            if not self._same(events):\n                self._refuse(events[0], refusal.code",
        "            if True:\n                self._refuse(events[0], refusal.code",
        (LOG + "an_append_whose_fate_was_unknown_is_found_when_it_is_repeated",),
    ),
    (
        "PostgreSQL: one process migrates at a time",
        "store/pg/migrate.py",
        '    connection.execute(q["lock_migrations"], (place.schema,))\n',
        "",
        (OPENING + "several_processes_that_migrate_at_once_make_one_store",),
    ),
)
