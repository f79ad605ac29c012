"""The guards against damage: name, file, old text, new text, tests (`guards.Guard`)."""

from __future__ import annotations

STORE = "store/test_damage.py::test_"
FILE = "store/test_sqlite_damage.py::test_"
TASK = "tasks/test_tasks_damage.py::test_"
PIECES = "store/test_pieces.py::test_"
ADDED = STORE + "a_row_that_somebody_added_to_a_task_at_rest_is_known_as_its_last_one"

DAMAGE: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "a task's chain is followed before a row is added to it",
        "log.py",
        "        if not self.sure:\n            self.make_sure()\n        first",
        "        first",
        (TASK + "no_case_is_opened_for_the_error_that_task_code_makes_of_a_damaged_output",),
    ),
    (
        "a task's chain is followed before a step is called",
        "executor.py",
        "        if not log.sure:\n            log.make_sure()",
        "        pass",
        (TASK + "nothing_is_read_because_of_a_changed_output",),
    ),
    (
        "a chain that breaks is damage",
        "store/chain.py",
        'if place != seq + 1 or (before or b"") != digest:',
        "if place != seq + 1:",
        (TASK + "a_changed_path_does_not_let_a_write_in_doubt_be_sent_a_second_time", STORE + "a_changed_row_is_found_by_whoever_is_to_act_on_its_task"),
    ),
    (
        "a chain with a gap is damage",
        "store/chain.py",
        'if place != seq + 1 or (before or b"") != digest:',
        'if place == seq + 1 and (before or b"") != digest:',
        (STORE + "a_missing_row_is_found_by_whoever_is_to_act_on_its_task",),
    ),
    (
        "a chain that ends before the row that was noted is damage",
        "store/chain.py",
        "if tail is not None and seq < tail[0]:",
        "if False:",
        (STORE + "the_last_row_of_a_task_at_rest_is_known_and_nothing_is_chained_to_another_one",),
    ),
    (
        "nothing is chained to a last row that is not the one that was noted",
        "store/transaction.py",
        "    check_last(last, None if noted is None else (noted[0], noted[1]))\n",
        "",
        (STORE + "a_takeover_is_not_chained_to_a_row_that_is_not_what_was_noted",),
    ),
    (
        "a last row that is not the one that was noted is damage",
        "store/reading.py",
        "        check_last(rows[0], tail)\n",
        "",
        (STORE + "the_last_row_of_the_stores_own_task_is_known",),
    ),
    (
        "what somebody adds to a task is noted as its last row",
        "store/sqlite.py",
        "            note_tail(cursor, written[-1])\n            return written",
        "            return written",
        (ADDED,),
    ),
    (
        "PostgreSQL: what somebody adds to a task is noted as its last row",
        "store/pg/rows.py",
        "    if tail or (release and len(events) > 1):",
        "    if release and len(events) > 1:",
        (ADDED,),
    ),
    (
        "the last row of the store's own task is noted",
        "store/transaction.py",
        "        note_store_tail(cursor, event)\n\n\ndef note_tail",
        "\n\ndef note_tail",
        (STORE + "the_last_row_of_the_stores_own_task_is_known",),
    ),
    (
        "of the rows before a snapshot, those that are used are checked",
        "store/reading.py",
        "        if wanted:\n",
        "        if False:\n",
        (STORE + "from_a_snapshot_on_only_what_is_used_of_the_rows_before_is_checked",),
    ),
    (
        "one step's rows are believed only when their task chains",
        "store/reading.py",
        "        if path is not None:\n            self._assure(task_id)\n",
        "        if path is not None:\n",
        (STORE + "the_rows_of_one_step_or_kind_are_believed_only_when_their_task_chains",),
    ),
    (
        "what others add is taken in only where it chains",
        "log.py",
        '                follow(self.task_id, links_of(rows), (self.seq, self.hash or b""), None)\n',
        "",
        (STORE + "what_others_add_is_taken_in_only_as_it_was_written",),
    ),
    (
        "of a value of another type than its column's SQLite spells another text",
        "store/schema.py",
        "return f\"iif(typeof({column}) = 'blob', x'00', coalesce({column}, 'None'))\"",
        "return f\"coalesce({column}, 'None')\"",
        ("fuzz/test_fuzz_events.py::test_the_same_bytes_as_a_value_of_another_type_are_another_row",),
    ),
    (
        "a word that there is not is damage",
        "store/chain.py",
        "if event.kind not in KINDS or event.status not in ALL_STATUSES or event.effect_class not in EFFECTS:",
        "if False:",
        (FILE + "nothing_is_concluded_from_a_row_whose_kind_is_none_that_there_is",),
    ),
    (
        "a head's status that there is not is damage",
        "store/chain.py",
        "if head.status not in STATUSES:",
        "if False:",
        (FILE + "nothing_is_concluded_from_a_head_whose_status_is_none_that_there_is",),
    ),
    (
        "a WAL that lost commits is refused",
        "store/opening.py",
        "        lost = lost_commits(place.path)\n        if lost:",
        "        lost = lost_commits(place.path)\n        if False:",
        (FILE + "a_wal_that_is_damaged_in_its_middle_is_refused_and_left_as_it_is",),
    ),
    (
        "a WAL that a loss of power tore is not refused",
        "store/wal.py",
        "if behind > 1 else",
        "if behind else",
        (FILE + "a_wal_that_is_torn_in_its_last_commit_is_what_a_loss_of_power_leaves",),
    ),
    (
        "what a failed sync left in a WAL is not taken for a commit",
        "store/wal.py",
        "            row = int(ours and commits)",
        "            row += int(ours and commits)",
        (FILE + "what_a_failed_sync_left_behind_a_torn_end_is_no_commit_that_was_lost",),
    ),
    (
        "another namespace than the mark's is refused",
        "store/opening.py",
        "case Mark() if mark.namespace != meta.namespace:",
        "case Mark() if False:",
        (FILE + "a_namespace_that_is_not_the_marks_is_refused",),
    ),
    (
        "a text that is no UTF-8 is damage",
        "store/link.py",
        "    if isinstance(error, UnicodeDecodeError):",
        "    if False:",
        (FILE + "a_text_that_is_no_utf8_is_damage",),
    ),
    (
        "a row's data that is no object is damage",
        "events.py",
        "        if type(found) is not dict:",
        "        if False:",
        (TASK + "damaged_data_of_a_row_is_damage_and_no_other_error",),
    ),
    (
        "a worker leaves a damaged task alone",
        "worker.py",
        "self._is_damaged(head.task_id) or ",
        "",
        (TASK + "a_worker_says_that_a_task_is_damaged_leaves_it_alone_for_a_while_and_runs_the_others",),
    ),
    (
        "one task whose log is damaged hides no other's doubts",
        "inbox.py",
        "        except StoreDamaged as error:  # it hides no other task's",
        "        except ZeroDivisionError as error:",
        (TASK + "a_task_whose_log_is_damaged_is_in_the_inbox_and_hides_no_other",),
    ),
    (
        "a log that is longer than a piece is read to its end",
        "store/reading.py",
        "if len(piece) < PIECE or not isinstance(piece[-1][seq], int) or piece[-1][seq] <= after:",
        "if True:",
        (PIECES + "a_log_that_is_longer_than_a_piece_is_read_to_its_end_and_in_order",),
    ),
    (
        "a damaged file whose rows go round is not read for ever",
        "store/reading.py",
        "if len(piece) < PIECE or not isinstance(piece[-1][seq], int) or piece[-1][seq] <= after:",
        "if len(piece) < PIECE:",
        (PIECES + "rows_that_go_round_in_a_damaged_file_end",),
    ),
    (
        "rows that are read from the first one on are checked as they are read",
        "store/reading.py",
        "        if after:\n            return self._next_rows",
        "        if True:\n            return self._next_rows",
        (PIECES + "a_changed_row_is_found_in_whatever_piece_it_lies",),
    ),
    (
        "a long log is never in memory as a whole",
        "store/reading.py",
        "(task_id, after, PIECE))\n            yield piece",
        "(task_id, after, 1 << 40))\n            yield piece",
        (PIECES + "no_read_of_a_load_gives_more_rows_than_a_piece_has",),
    ),
    (
        "between two snapshots rows are folded before there are many",
        "snapshotting.py",
        "if len(self.later) >= MANY:",
        "if len(self.later) >= 1 << 40:",
        (
            "snapshots/test_snapshots_tasks.py::"
            "test_between_two_snapshots_only_a_few_rows_are_kept_whole_and_the_snapshot_is_the_same",
        ),
    ),
)
