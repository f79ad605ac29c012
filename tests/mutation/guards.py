"""The guards, as data: what each is in words, the text that is it, the text without it, and the test that misses it.

`old` occurs exactly once in its file, so that the list cannot rot. `new` is the same code as somebody would have it who
had not thought of the guard. A line of `tests` is a file under `tests/` and a test function in it.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """One guard, its removal, and the tests of which at least one must fail without it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PROTOCOL, FOLD, EXECUTOR, SQL = "protocol.py", "fold.py", "executor.py", "store/sql/sqlite.sql"
U = "unit/test_protocol.py::test_"
UF = "unit/test_fold.py::test_"
CANON = "unit/test_canonical.py::test_"
LOG = "store/test_log.py::test_"
UNDO = "compensation/test_undoing.py::test_"
ONE = "people/test_one_answer.py::test_"

GUARDS: tuple[Guard, ...] = (
    # ------------------------------------------------------------ what may be done next
    Guard(
        "the worst of all attempts decides, not the last",
        FOLD,
        "for a in self.current}",
        "for a in self.current[-1:]}",
        (U + "an_older_doubt_is_not_forgotten_because_the_last_call_was_not_sent",),
    ),
    Guard(
        "what an earlier claim began and did not end is in doubt",
        FOLD,
        "return self.epoch is not None and attempt.epoch != self.epoch",
        "return False",
        (U + "a_call_that_an_earlier_claim_left_without_an_outcome_is_in_doubt_though_no_row_says_that_it_died",),
    ),
    Guard(
        "a takeover makes what was in flight unknown",
        FOLD,
        'attempt.end("unknown", row.at, code="owner_died")',
        "pass",
        (UF + "a_takeover_makes_what_a_dead_owner_had_in_flight_unknown_since_then",),
    ),
    Guard(
        "a call in flight is waited for",
        PROTOCOL,
        "if record.in_flight is not None:",
        "if record.in_flight is not None and not record.attempts:",
        (U + "a_call_that_its_owner_still_has_is_waited_for",),
    ),
    Guard(
        "an unknown outcome is sent again only where a key protects it",
        PROTOCOL,
        "resend = _call(policy, record, now, last) if may else None",
        "resend = _call(policy, record, now, last)",
        (U + "a_non_idem_write_in_doubt_is_looked_back_at_at_once",),
    ),
    Guard(
        "the key of a non_idem_write protects nothing",
        PROTOCOL,
        "if policy.effect != Effect.IDEM_WRITE or record.suspect:",
        "if record.suspect:",
        (U + "a_non_idem_write_in_doubt_is_looked_back_at_at_once",),
    ),
    Guard(
        "after a restored backup no key window is trusted",
        PROTOCOL,
        "if policy.effect != Effect.IDEM_WRITE or record.suspect:",
        "if policy.effect != Effect.IDEM_WRITE:",
        (U + "after_a_restored_backup_a_write_counts_as_sent_and_its_key_window_as_over",),
    ),
    Guard(
        "a resend only inside the key window",
        PROTOCOL,
        "return elapsed_most(first.started, now) + start + policy.timeout_us + margin < policy.key_window_us",
        "return True",
        (U + "a_resend_has_to_end_inside_the_key_window_with_its_margin",),
    ),
    Guard(
        "the key window has a margin",
        PROTOCOL,
        "margin = max(5 * SECOND, policy.key_window_us // 100)",
        "margin = 0",
        (U + "a_resend_has_to_end_inside_the_key_window_with_its_margin",),
    ),
    Guard(
        "the call itself has to end inside the key window",
        PROTOCOL,
        "+ start + policy.timeout_us + margin <",
        "+ start + margin <",
        (U + "a_resend_has_to_end_inside_the_key_window_with_its_margin",),
    ),
    Guard(
        "the backoff still to come counts into the key window",
        PROTOCOL,
        "start = max(0, wait.at - now.wall) if isinstance(wait, WaitUntil) else 0",
        "start = 0",
        (U + "the_backoff_still_to_come_counts_into_the_key_window",),
    ),
    Guard(
        "the key window runs from the key's first send",
        PROTOCOL,
        "first = next(a for a in record.attempts if a.generation == record.generation)",
        "first = record.attempts[-1]",
        (U + "the_key_window_runs_from_the_first_send_of_that_key_not_from_the_last",),
    ),
    Guard(
        "a new key only after a definite refusal",
        PROTOCOL,
        'return any(a.outcome == "rejected" and a.generation == record.generation for a in record.attempts)',
        "return True",
        (U + "what_is_proven_absent_is_called_again_at_once_with_the_same_key",),
    ),
    Guard(
        "only attempts under the current key count",
        FOLD,
        "if a.generation == self.generation and not a.cleared]",
        "if not a.cleared]",
        (U + "attempts_under_an_older_generation_do_not_count",),
    ),
    Guard(
        "the budget ends the calls",
        PROTOCOL,
        "if len(record.attempts) >= max(policy.attempts + record.granted, record.granted_until):",
        "if len(record.attempts) >= max(policy.attempts + record.granted + 1, record.granted_until):",
        (U + "not_sent_is_given_up_when_the_budget_is_used_up",),
    ),
    Guard(
        "the budget is counted from the log, over all claims",
        PROTOCOL,
        "if len(record.attempts) >= max(policy.attempts + record.granted, record.granted_until):",
        "if sum(a.epoch == record.epoch for a in record.attempts) >= max(policy.attempts + record.granted, record.granted_until):",
        (U + "a_takeover_gives_no_attempt_back",),
    ),
    Guard(
        "what was proven absent stays in the budget",
        PROTOCOL,
        "if len(record.attempts) >= max(policy.attempts + record.granted, record.granted_until):",
        "if len(record.current) >= max(policy.attempts + record.granted, record.granted_until):",
        (U + "cleared_attempts_stay_in_the_budget",),
    ),
    Guard(
        "the pause that the other side asked for is kept",
        PROTOCOL,
        "wait = max(backoff(policy, record, len(record.attempts)), after.retry_after_us or 0)",
        "wait = backoff(policy, record, len(record.attempts))",
        (U + "a_wait_that_the_other_side_asked_for_is_kept",),
    ),
    Guard(
        "on_absent=fail gives up what is proven absent",
        PROTOCOL,
        'if policy.on_absent == "fail" and record.absent:',
        'if policy.on_absent == "never" and record.absent:',
        (U + "what_is_proven_absent_is_not_applied_where_the_step_says_fail",),
    ),
    Guard(
        "what is settled stays settled",
        PROTOCOL,
        "    if record.settled:\n",
        "    if record.settled and record.effect == Effect.READ:\n",
        (U + "what_failed_for_good_fails_the_same_way_again",),
    ),
    Guard(
        "a success of any attempt settles what is unsettled",
        PROTOCOL,
        "if record.evidence is not None:  # rule 12",
        "if record.evidence is not None and record.evidence[0] == len(record.attempts):  # rule 12",
        (U + "a_success_of_any_attempt_settles_what_is_unsettled",),
    ),
    Guard(
        "settle_within: from then on a case is open",
        PROTOCOL,
        "action = _by_the_deadline(policy, record, now, _write(policy, record, now))",
        "action = _write(policy, record, now)",
        (U + "settle_within_after_the_intent_a_case_is_opened_whatever_else_is_going_on",),
    ),
    Guard(
        "no wait goes beyond settle_within",
        PROTOCOL,
        "if isinstance(action, WaitUntil) and action.at > now.wall + left:\n        return WaitUntil(now.wall + left, action.why)\n",
        "",
        (U + "settle_within_comes_before_the_next_look_or_call",),
    ),
    # ------------------------------------------------------------ what proves an absence
    Guard(
        "the absence clock starts at the last possible send",
        FOLD,
        "ends = [a.call_ended for a in self.attempts if a.generation == self.generation]",
        "ends = [a.started for a in self.attempts if a.generation == self.generation]",
        (
            U + "an_absence_counts_from_the_takeover_of_a_dead_owner_never_from_the_attempts_start",
            U + "an_absence_counts_from_the_end_of_the_call",
        ),
    ),
    Guard(
        "while the thread of a call runs, it may still send",
        FOLD,
        "self.call_ended = None if running else at",
        "self.call_ended = at",
        (U + "no_absence_counts_while_the_thread_of_the_call_may_still_send",),
    ),
    Guard(
        "a call that a person overrode may still land",
        FOLD,
        "ends = [a.call_ended for a in self.attempts if a.generation == self.generation]",
        "ends = [a.call_ended for a in self.current]",
        (U + "a_call_that_a_person_overrode_can_still_land_and_no_absence_counts_before_it_has_ended",),
    ),
    Guard(
        "the latest send of all attempts counts",
        FOLD,
        "return None if None in ends or not ends else min(",
        "return None if None in ends or not ends else max(",
        (U + "a_proof_takes_the_last_send_of_all_attempts_that_count",),
    ),
    Guard(
        "two absents, not one",
        PROTOCOL,
        "return len(proofs) >= 2 and elapsed_least(proofs[0].started, look.started) >= absence_gap(policy)",
        "return len(proofs) >= 1",
        (U + "two_absents_after_the_time_and_apart_are_proof",),
    ),
    Guard(
        "two absents have to be apart",
        PROTOCOL,
        "return len(proofs) >= 2 and elapsed_least(proofs[0].started, look.started) >= absence_gap(policy)",
        "return len(proofs) >= 2",
        (U + "two_absents_are_a_quarter_of_absent_after_and_at_least_a_second_apart",),
    ),
    Guard(
        "an absent counts only if it started when an absence was proof",
        PROTOCOL,
        'if look.answer != "absent" or quiet is None or quiet < after:',
        'if look.answer != "absent" or quiet is None:',
        (U + "one_absent_before_the_time_and_one_after_do_not_count",),
    ),
    Guard(
        "another answer between two absents breaks their run",
        PROTOCOL,
        "            break\n        proofs.insert(0, look)",
        "            continue\n        proofs.insert(0, look)",
        (U + "another_answer_between_two_absents_breaks_the_run",),
    ),
    Guard(
        "a new attempt starts the count of looks at zero",
        FOLD,
        "return [look for look in self.looks if look.attempt == number]",
        "return list(self.looks)",
        (U + "a_new_attempt_starts_the_count_of_unclear_answers_at_zero",),
    ),
    Guard(
        "once a handle is recorded, an absence proves nothing",
        PROTOCOL,
        "if after is None or record.handles:",
        "if after is None:",
        (U + "once_a_handle_is_recorded_an_absence_is_unclear",),
    ),
    Guard(
        "once a handle is recorded, an absence counts as unclear",
        PROTOCOL,
        'unclear = sum(look.answer == "unclear" or (look.answer == "absent" and bool(record.handles)) for look in looks)',
        'unclear = sum(look.answer == "unclear" for look in looks)',
        (U + "once_a_handle_is_recorded_an_absence_is_unclear",),
    ),
    Guard(
        "without absent_after an absence proves nothing",
        PROTOCOL,
        "after = policy.absent_after_us\n",
        "after = policy.absent_after_us or 0\n",
        (U + "an_absence_proves_nothing_where_the_step_does_not_say_when",),
    ),
    Guard(
        "without absent_after an absence goes to a person",
        PROTOCOL,
        'case "absent" if policy.absent_after_us is None and not record.handles:',
        'case "absent" if policy.absent_after_us == 0 and not record.handles:',
        (U + "an_absence_proves_nothing_where_the_step_does_not_say_when",),
    ),
    Guard(
        "a final no_effect counts only when no call can land any more",
        PROTOCOL,
        "return quiet is not None and quiet >= landing_time(policy)",
        "return quiet is not None",
        (U + "no_effect_that_started_before_the_quiet_time_does_not_count",),
    ),
    Guard(
        "several matches are a question for a person",
        PROTOCOL,
        'return AskHuman("the query found several")',
        'return _look_at(0, now, "the query found several")',
        (U + "several_is_a_case",),
    ),
    Guard(
        "unclear answers are asked again only query_attempts times",
        PROTOCOL,
        "if unclear >= policy.query_attempts:",
        "if unclear > policy.query_attempts:",
        (U + "unclear_is_asked_again_with_backoff_until_the_query_attempts_are_used_up",),
    ),
    Guard(
        "a wall clock set forward proves no absence",
        "events.py",
        "return min(wall, now.boot - since.boot)",
        "return wall",
        (U + "a_clock_set_forward_proves_no_absence_earlier",),
    ),
    Guard(
        "a wall clock set back reopens no key window",
        "events.py",
        "return max(wall, now.boot - since.boot)",
        "return wall",
        (U + "a_clock_set_back_does_not_reopen_a_key_window",),
    ),
    Guard(
        "a wall clock set back over a reboot ends windows and deadlines",
        "events.py",
        "return wall if wall >= 0 else FOREVER",
        "return wall",
        (U + "a_clock_set_back_over_a_reboot_ends_windows_and_deadlines_because_nobody_knows_how_long_it_was",),
    ),
    # ------------------------------------------------------------ what a person says
    Guard(
        "did_not_happen acts when nothing can land any more",
        PROTOCOL,
        "if quiet is not None and quiet < settle:",
        "if quiet is not None and quiet < 0:",
        (U + "did_not_happen_acts_when_nothing_can_land_any_more",),
    ),
    Guard(
        "did_not_happen waits for the call that runs",
        PROTOCOL,
        "if quiet is None and record.current:",
        "if quiet is None and not record.attempts:",
        (U + "did_not_happen_waits_for_the_thread_of_the_call",),
    ),
    Guard(
        "did_not_happen acts after a fresh look",
        PROTOCOL,
        "if policy.has_query and quiet is not None:",
        "if policy.has_query and quiet is None:",
        (U + "did_not_happen_acts_after_one_fresh_look",),
    ),
    Guard(
        "a fresh look is one after the answer and after the quiet time",
        PROTOCOL,
        "fresh = [k for k in record.looks if k.seq > answer.seq and (record.quiet_for(k.started) or 0) >= settle]",
        "fresh = list(record.looks)",
        (U + "a_look_before_the_answer_or_before_the_quiet_time_is_not_fresh",),
    ),
    Guard(
        "what the fresh look shows makes the answer void",
        PROTOCOL,
        'if fresh[-1].answer in ("pending", "several"):',
        'if fresh[-1].answer == "found":',
        (U + "did_not_happen_is_void_when_the_fresh_look_says_otherwise",),
    ),
    Guard(
        "a permission is used up by its attempt",
        FOLD,
        "        self.error = None\n        self.answer = None\n",
        "        self.error = None\n",
        (UF + "an_answer_is_spent_when_it_has_acted",),
    ),
    Guard(
        "a new case makes the answer before it void",
        FOLD,
        "self.answer = None  # what the new case shows makes the answer before it void",
        "pass",
        (UF + "did_not_happen_waits_in_the_record_and_a_new_case_makes_it_void",),
    ),
    Guard(
        "a case takes one answer (compare-and-set in the store)",
        SQL,
        "WHERE case_id = ?1\n  AND settled_seq IS NULL\n",
        "WHERE case_id = ?1\n",
        ("store/test_projections.py::test_a_case_is_settled_once",),
    ),
    Guard(
        "a late answer is refused and takes its whole transaction back",
        "store/projections.py",
        '    cursor.execute(q["close_case"], (change.case_id, event.event_seq, event.at.wall, change.by))\n'
        "    if cursor.connection.changes() == 1:\n        return\n",
        '    cursor.execute(q["close_case"], (change.case_id, event.event_seq, event.at.wall, change.by))\n    return\n',
        ("store/test_projections.py::test_an_owner_that_settles_a_case_too_late_writes_nothing",),
    ),
    Guard(
        "an answer is bound to the hash of what was shown",
        "inbox.py",
        "if len(shown) < 8 or not case.hash.startswith(shown.lower()):",
        "if len(shown) < 8:",
        (ONE + "new_evidence_makes_the_person_look_again",),
    ),
    Guard(
        "evidence that comes while an answer is judged is seen",
        "inbox.py",
        "store.add(row.task_id, rows, expect=last.event_seq if last else None, blobs=blobs)",
        "store.add(row.task_id, rows, blobs=blobs)",
        (ONE + "evidence_that_comes_while_an_answer_is_being_judged_is_new_evidence_too",),
    ),
    Guard(
        "a case takes only the answers of its kind",
        "inbox.py",
        "if not isinstance(answer, takes):",
        "if not isinstance(answer, AnyAnswer):",
        ("people/test_answers.py::test_a_doubt_takes_no_answer_of_another_kind_of_case",),
    ),
    Guard(
        "an answer needs a name",
        "inbox.py",
        "if not by.strip():",
        "if by is None:",
        ("people/test_answers.py::test_an_answer_needs_a_name",),
    ),
    # ------------------------------------------------------------ intent, attempt, key, params
    Guard(
        "the intent is durable before the call",
        EXECUTOR,
        "    if rows:\n        try:\n            run.log.append(",
        "    if rows and record is not None:\n        try:\n            run.log.append(",
        ("tasks/test_tasks_ownership.py::test_the_task_of_a_killed_process_is_taken_over_at_once_and_its_call_is_in_doubt",),
    ),
    Guard(
        "a write whose row the store refuses is not called",
        EXECUTOR,
        "        except (Moved, KeyHeld):\n            return None\n        except Frozen",
        "        except Moved:\n            return None\n        except KeyHeld:\n            pass\n        except Frozen",
        ("keys/test_keys_together.py::test_of_processes_at_the_same_instant_one_has_each_effect_and_all_have_its_output",),
    ),
    Guard(
        "each further attempt has its row before it begins",
        EXECUTOR,
        "    if rows:\n        try:\n            run.log.append(",
        "    if rows and record is None:\n        try:\n            run.log.append(",
        ("people/test_cases_keys.py::test_the_attempts_of_one_intent_share_its_key_and_their_number_is_a_column",),
    ),
    Guard(
        "the key is the intent's, not made anew",
        EXECUTOR,
        "            key, rows = next_attempt(run, definition, record, action, started)\n",
        "            key, rows = next_attempt(run, definition, record, action, started)\n"
        '            text = given.key_text if given is not None else ""\n'
        "            key = idempotency_key(run.runtime.namespace, run.task_id, path, definition.name, text, 0)\n",
        ("people/test_cases_keys.py::test_a_resend_uses_the_stored_params_and_key_and_not_those_that_the_code_derives_anew",),
    ),
    Guard(
        "the params are the intent's, whatever the code words this time",
        "inputs.py",
        "if record is not None and record.input_ref is not None:",
        "if given is None and record is not None and record.input_ref is not None:",
        ("tasks/test_tasks_replay.py::test_what_was_surely_not_sent_is_sent_as_it_was_stored_too",),
    ),
    Guard(
        "a place has one intent",
        FOLD,
        'return [(row.path, self._records[row.path].status, "a second intent")]',
        "pass",
        (UF + "moves_that_no_step_may_make_are_found_and_a_second_intent_too",),
    ),
    Guard(
        "of an open intent the stricter of both policies decides",
        EXECUTOR,
        "if definition is not None and record.policy_digest == definition.definition_hash:",
        "if definition is not None:",
        ("tasks/test_tasks_drift.py::test_the_class_of_an_open_intent_may_only_be_tightened_by_a_deploy",),
    ),
    Guard(
        "of two key windows the shorter holds",
        "effects.py",
        "key_window_us=min(windows, default=None)",
        "key_window_us=max(windows, default=None)",
        ("unit/test_effects.py::test_of_two_key_windows_the_shorter_holds_and_none_is_the_longest",),
    ),
    Guard(
        "what an intent relied on and a deploy removed goes to a person",
        EXECUTOR,
        "if record is not None and record.in_doubt and lost and not record.evidence and not record.answer:",
        "if record is None and lost:",
        ("tasks/test_tasks_drift.py::test_what_an_intent_relied_on_and_is_gone_is_a_case_before_anybody_else_is_asked",),
    ),
    Guard(
        "what is cancelled before its function was entered is not_sent",
        EXECUTOR,
        "elif isinstance(reply, Raised) and not reply.entered:",
        "elif isinstance(reply, Raised) and not reply.entered and reply.running:",
        ("tasks/test_tasks_cancellation.py::test_interrupted_between_the_intent_and_the_call_is_not_sent",),
    ),
    Guard(
        "a doubt stops other writes",
        FOLD,
        'return self.effect != Effect.READ and not self.settled and self.gravest == "unknown"',
        "return self.effect == Effect.READ and not self.settled",
        (
            "tasks/test_tasks_parking.py::test_no_new_intent_is_written_while_another_step_is_in_doubt_reads_may_go_on_if_declared",
        ),
    ),
    Guard(
        "a doubt stops reads too, unless they are declared independent",
        EXECUTOR,
        "if record is None and log.open and not policy.independent and run.blocked_by_doubt(path):  # rule 8",
        "if record is None and log.open and policy.effect != Effect.READ and run.blocked_by_doubt(path):  # rule 8",
        (
            "tasks/test_tasks_parking.py::test_no_new_intent_is_written_while_another_step_is_in_doubt_reads_may_go_on_if_declared",
        ),
    ),
    Guard(
        "a doubt in one branch stops the writes of the others",
        "log.py",
        "if guard is not None and self.open and drafts[0].kind == Kind.STEP_INTENDED and self._doubt_beside(drafts[0].path):",
        'if guard == "*" and self._doubt_beside(drafts[0].path):',
        (
            "tasks/test_parallel.py::test_a_write_that_was_decided_before_its_neighbours_reply_was_lost_does_not_begin",
        ),
    ),
    Guard(
        "cancel: an intent that was decided before the wish came is not written",
        "log.py",
        "if guard is not None and drafts[0].kind == Kind.STEP_INTENDED and self.cancel is not None and self.failing is None:",
        'if guard == "*" and self.cancel is not None:',
        ("compensation/test_cancel.py::test_an_intent_that_was_decided_before_the_wish_came_is_not_written",),
    ),
    Guard(
        "cancel: what was not sent is not sent again",
        EXECUTOR,
        "if (given is None or run.cancelled(path)) and (",
        "if given is None and (",
        ("compensation/test_cancel.py::test_a_write_that_was_not_sent_is_not_sent_again",),
    ),
    # ------------------------------------------------------------ results and late news
    Guard(
        "a result that the store does not take is kept beside it",
        "recording.py",
        "raise spill_result(run, rows[0], output.text, error) from error",
        "raise",
        (
            "people/test_results_are_kept.py::"
            "test_a_result_for_which_there_is_no_room_is_spilled_beside_the_database_and_settles_its_step_later",
        ),
    ),
    Guard(
        "a result that comes when a person has settled the step is kept as evidence",
        "recording.py",
        "            late_result(run.runtime, run.task_id, rows[0], output.blobs)\n            return False",
        "            return False",
        (
            "tasks/test_tasks_timeouts.py::"
            "test_an_effect_that_came_after_a_person_gave_the_step_up_is_a_contradiction_and_the_code_sees_what_stands",
        ),
    ),
    Guard(
        "a late success that contradicts what is settled opens a case",
        "latenews.py",
        "        if why is not None:\n",
        '        if why is not None and why == "":\n',
        ("tasks/test_waits_and_news.py::test_a_late_success_that_meets_a_persons_answer_is_a_contradiction_case",),
    ),
    Guard(
        "late news is judged by the log as it is when it is written",
        "latenews.py",
        "written = runtime.store.add(task_id, rows, expect=events[-1].event_seq, blobs=blobs)",
        "written = runtime.store.add(task_id, rows, blobs=blobs)",
        ("tasks/test_waits_and_news.py::test_a_late_success_that_meets_a_persons_answer_is_a_contradiction_case",),
    ),
    Guard(
        "a second attempt of an unprotected write after a late success is a contradiction",
        EXECUTOR,
        "unprotected = record.effect == Effect.NON_IDEM_WRITE and any(a.number > action.attempt for a in record.attempts)",
        "unprotected = False",
        (
            "tasks/test_tasks_timeouts.py::"
            "test_a_late_success_that_settles_a_step_whose_risked_attempt_is_in_doubt_too_is_a_contradiction",
        ),
    ),
    # ------------------------------------------------------------ undoing
    Guard(
        "effects are undone in reverse order",
        "obligations.py",
        "key=lambda one: -done_at.get(",
        "key=lambda one: done_at.get(",
        (UNDO + "a_failed_task_undoes_its_effects_the_latest_first_and_ends_compensated",),
    ),
    Guard(
        "only what is done is undone",
        "obligations.py",
        "record.origin is not None or record.status not in (StepStatus.DONE, StepStatus.COMPENSATED):",
        "record.origin is not None:",
        ("tasks/test_tasks_ends.py::test_what_was_not_applied_is_no_obligation",),
    ),
    Guard(
        "what another task did stands in that one's list, not in this one's",
        "obligations.py",
        "elif path[0] == UNDO or record.origin is not None or record.effect == Effect.READ:",
        "elif path[0] == UNDO or record.effect == Effect.READ:",
        ("keys/test_business_keys.py::test_a_step_whose_effect_another_task_made_carries_no_obligation",),
    ),
    Guard(
        "a compensation is done only with evidence",
        "undoing.py",
        "if shows_nothing(said):",
        "if shows_nothing(said) and said is NotImplemented:",
        (UNDO + "a_compensation_that_shows_nothing_is_asked_about_and_without_a_query_a_person_is",),
    ),
    Guard(
        "no machine lets an effect stand",
        PROTOCOL,
        "if record.undoes and isinstance(action, Fail):",
        "if record.undoes and isinstance(action, Reuse):",
        (UNDO + "a_rejected_compensation_goes_to_a_person",),
    ),
    Guard(
        "what shows nothing is not sent a second time",
        PROTOCOL,
        "_inside_key_window(policy, record, now) and not record.shown_nothing and",
        "_inside_key_window(policy, record, now) and",
        (UNDO + "a_compensation_that_shows_nothing_is_done_when_its_query_finds_it_and_is_not_sent_again",),
    ),
    Guard(
        "after its deadline no compensation begins",
        PROTOCOL,
        "return FIRST if time_left(policy, now) else AskHuman(TOO_LATE)",
        "return FIRST",
        (U + "a_compensation_begins_before_its_deadline_and_not_at_it",),
    ),
    Guard(
        "after its deadline no compensation is sent again",
        PROTOCOL,
        "return _in_time(policy, record, now, action)",
        "return action",
        (UNDO + "the_deadline_stops_retries_too_and_the_case_opens_in_time",),
    ),
    Guard(
        "the deadline is checked again right before the call",
        EXECUTOR,
        "if policy.undo_by is not None and not action.allow and not time_left(policy, run.runtime.store.now()):",
        "if policy.undo_by is None and action.allow and not time_left(policy, run.runtime.store.now()):",
        (UNDO + "a_compensation_is_not_called_when_its_deadline_passes_while_its_intent_is_written",),
    ),
    Guard(
        "the deadline runs from the first attempt that may have done it",
        "obligations.py",
        "return (may or record.attempts)[0]",
        "return record.attempts[0]",
        (UNDO + "the_deadline_runs_from_the_first_attempt_that_may_have_done_it",),
    ),
    Guard(
        "a task does not end while a write is in doubt",
        "conclusion.py",
        "        records = self.unsettled()\n        if not records:\n            return False\n        said",
        "        records = self.unsettled()\n        if not records or records:\n            return False\n        said",
        (
            "tasks/test_tasks_findings.py::test_a_task_failed_by_a_person_does_not_end_while_a_write_cannot_be_settled",
            "tasks/test_tasks_findings.py::test_code_that_catches_what_settling_raised_does_not_end_its_task_past_the_doubt",
        ),
    ),
    # ------------------------------------------------------------ the store
    Guard(
        "an append under an old epoch is refused",
        SQL,
        "  CASE WHEN (SELECT epoch FROM tasks WHERE task_id = ?1) = ?19 THEN ?2 END,\n",
        "  ?2,\n",
        ("store/test_owners.py::test_an_owner_whose_lock_file_was_removed_is_stopped_by_the_next_claim",),
    ),
    Guard(
        "an append by a process that holds no claim is refused",
        "store/transaction.py",
        "if owner.tasks.get(event.task_id) == event.epoch:  # I4, also for the child of a fork",
        "if event.epoch is not None:  # I4, also for the child of a fork",
        ("store/test_owners.py::test_a_forked_child_does_not_own_what_its_parent_owns",),
    ),
    Guard(
        "the log has no gap",
        SQL,
        "  WHEN NEW.event_seq IS NOT 1 + coalesce((SELECT max(event_seq) FROM events WHERE task_id = NEW.task_id), 0)\n",
        "  WHEN NEW.event_seq IS NULL\n",
        (LOG + "a_row_that_leaves_a_gap_is_refused_as_moved",),
    ),
    Guard(
        "a row is never changed",
        SQL,
        "BEFORE UPDATE ON events\n  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;",
        "BEFORE UPDATE ON events\n  BEGIN SELECT 1; END;",
        (LOG + "no_statement_of_a_foreign_connection_changes_or_removes_what_is_recorded",),
    ),
    Guard(
        "a row is never removed",
        SQL,
        "BEFORE DELETE ON events\n  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;",
        "BEFORE DELETE ON events\n  BEGIN SELECT 1; END;",
        (LOG + "no_statement_of_a_foreign_connection_changes_or_removes_what_is_recorded",),
    ),
    Guard(
        "content never changes",
        SQL,
        "BEFORE UPDATE ON blobs\n  BEGIN SELECT RAISE(ABORT, 'content never changes'); END;",
        "BEFORE UPDATE ON blobs\n  BEGIN SELECT 1; END;",
        (LOG + "no_statement_of_a_foreign_connection_changes_or_removes_what_is_recorded",),
    ),
    Guard(
        "an append that is repeated is compared whole",
        "store/transaction.py",
        "return rows[: len(events)] == [tuple(event) for event in events]",
        "return len(rows) >= len(events)",
        (LOG + "a_repeated_append_that_differs_in_one_column_is_not_taken_for_the_same",),
    ),
    Guard(
        "a person's row is written only to the log that was shown",
        "store/sqlite.py",
        "if expect is not None and written[0].event_seq != expect + 1:",
        "if expect is not None and written[0].event_seq < expect + 1:",
        (LOG + "a_persons_row_is_refused_when_the_log_is_not_as_it_was_shown",),
    ),
    Guard(
        "a freeze is seen in the append's own statement",
        SQL,
        " AND NOT EXISTS (SELECT 1 FROM freezes) THEN ?2 END,",
        " THEN ?2 END,",
        (LOG + "a_frozen_step_takes_no_new_attempt_until_it_is_thawed",),
    ),
    Guard(
        "a freeze is seen in the append's own transaction",
        SQL,
        "      AND NOT EXISTS (SELECT 1 FROM freezes WHERE step = ?22 OR step = '*')\n",
        "      AND ?22 IS NOT NULL\n",
        (LOG + "a_frozen_step_takes_no_new_attempt_until_it_is_thawed",),
    ),
    Guard(
        "a business key has one holder",
        SQL,
        "\n  AND (keys.state = 'freed' OR keys.state = 'done')\n",
        "\n",
        ("store/test_keys.py::test_what_settles_the_holder_moves_the_key_and_the_next_turn_follows_only_then",),
    ),
    Guard(
        "a turn of a business key is taken once",
        SQL,
        "WHERE keys.turn = excluded.turn - 1\n  AND (",
        "WHERE (",
        ("store/test_keys.py::test_what_settles_the_holder_moves_the_key_and_the_next_turn_follows_only_then",),
    ),
    Guard(
        "who does not get the business key writes nothing",
        "store/projections.py",
        "(change.once, change.turn, event.task_id, change.path, change.window_us))\n    if cursor.connection.changes() == 1:\n"
        "        return\n",
        "(change.once, change.turn, event.task_id, change.path, change.window_us))\n    return\n",
        ("store/test_keys.py::test_a_key_is_taken_with_its_row_and_has_one_holder",),
    ),
    Guard(
        "a step that was given up keeps its business key",
        FOLD,
        'StepStatus.FAILED: "failed"}',
        'StepStatus.FAILED: "freed"}',
        ("keys/test_business_keys.py::test_a_key_of_an_abandoned_step_is_kept_and_the_next_is_refused",),
    ),
    Guard(
        "other params under a held business key are refused",
        "holders.py",
        "case _ if record.input_hash != given.digest:",
        "case _ if record.input_hash is None:",
        ("keys/test_business_keys.py::test_other_params_under_a_held_key_are_refused_before_anything_is_sent",),
    ),
    Guard(
        "the task of a living process is not taken over",
        "store/transaction.py",
        "(task_id in owner.tasks if ours else alive(owner.folder, head.owner)):",
        "(task_id in owner.tasks if ours else False):",
        ("store/test_owners.py::test_the_task_of_a_living_process_is_busy_and_it_says_how_to_end_it",),
    ),
    Guard(
        "a second thread does not take this process's own task",
        "store/transaction.py",
        "(task_id in owner.tasks if ours else alive(owner.folder, head.owner)):",
        "(False if ours else alive(owner.folder, head.owner)):",
        ("store/test_owners.py::test_two_stores_of_one_process_do_not_share_a_task",),
    ),
    Guard(
        "two that look at a dead owner do not take each other for it",
        "store/owners.py",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        ("store/test_owners.py::test_two_that_look_at_a_dead_owner_at_once_do_not_take_each_other_for_it",),
    ),
    Guard(
        "a child of a fork drops its parent's lock and claims",
        "store/owners.py",
        "        self.lock = threading.Lock()\n        self.tasks.clear()\n",
        "        self.lock = threading.Lock()\n",
        ("store/test_owners.py::test_a_forked_child_does_not_own_what_its_parent_owns",),
    ),
    Guard(
        "a takeover writes its row",
        "store/sqlite.py",
        "takeover = head.owner is not None and head.status not in TERMINAL",
        "takeover = False",
        ("store/test_owners.py::test_the_task_of_a_killed_process_is_taken_over_with_a_row",),
    ),
    Guard(
        "terminal is final: what has ended gets no row by a claim",
        "store/sqlite.py",
        "takeover = head.owner is not None and head.status not in TERMINAL",
        "takeover = head.owner is not None",
        ("store/test_owners.py::test_a_task_that_ended_under_a_dead_owner_is_claimed_without_a_row",),
    ),
    Guard(
        "terminal is final: what has ended is not run again",
        "runs.py",
        "            if claim.head.status in TERMINAL:\n",
        "            if claim.head.status in TERMINAL and claim.takeover:\n",
        ("tasks/test_tasks_ownership.py::test_runs_that_come_while_a_task_is_ending_never_end_it_twice",),
    ),
    Guard(
        "a release by an old epoch changes nothing",
        SQL,
        "SET owner = NULL, epoch = NULL, claimed_at = NULL\nWHERE task_id = ?1\n  AND epoch = ?2\n",
        "SET owner = NULL, epoch = NULL, claimed_at = NULL\nWHERE task_id = ?1\n  AND ?2 IS NOT NULL\n",
        ("store/test_projections.py::test_a_release_by_an_old_epoch_changes_nothing",),
    ),
    Guard(
        "an answer wakes only a task that sleeps",
        FOLD,
        "_WAKE = HeadChange(TaskStatus.READY, None, None, False, _ASLEEP)",
        "_WAKE = HeadChange(TaskStatus.READY, None, None, False)",
        ("store/test_projections.py::test_an_answer_wakes_a_task_that_sleeps_and_no_other",),
    ),
    Guard(
        "a database behind its mark is refused",
        "store/opening.py",
        "        why = misfit(mark, meta)\n",
        '        why = misfit(mark, meta) and ""\n',
        ("store/test_sqlite_mark.py::test_a_database_restored_from_a_backup_is_refused_with_the_command_to_type",),
    ),
    Guard(
        "the mark is never lowered",
        "store/mark.py",
        "elif now.generation < generation:",
        "elif now.generation != generation:",
        ("store/test_sqlite_mark.py::test_the_mark_is_never_lowered_nor_made_anew_nor_anothers",),
    ),
    Guard(
        "a damaged mark is no mark",
        "store/mark.py",
        'if len(content) != _SIZE or content[-65:] != f"{sha256(text).hexdigest()}\\n".encode():',
        "if len(content) != _SIZE:",
        ("store/test_sqlite_mark.py::test_a_mark_that_was_cut_or_changed_in_any_byte_is_unfit",),
    ),
    Guard(
        "verify walks the chain of hashes",
        "store/verify.py",
        'elif (event.prev_hash or b"") != digest:',
        'elif (event.prev_hash or b"") != digest and not digest:',
        ("store/test_sqlite_verify.py::test_a_row_with_one_changed_column_is_found",),
    ),
    Guard(
        "content that is not what was written is never given back",
        "blobs.py",
        "if content is None or sha256(content).digest() != ref:",
        "if content is None:",
        ("store/test_content.py::test_content_that_is_not_what_was_written_is_never_given_back",),
    ),
    Guard(
        "a row of a newer format is refused",
        "events.py",
        "if event.format > FORMAT:",
        "if event.format > FORMAT + 1:",
        ("store/test_sqlite_refusals.py::test_a_newer_format_of_a_row_is_refused",),
    ),
    Guard(
        "a snapshot stands on the row that it was made at",
        "snapshots.py",
        "if row_hash(row) != snapshot.row_hash:",
        "if row.event_seq != snapshot.event_seq:",
        ("store/test_snapshots.py::test_what_does_not_fit_the_log_is_passed_over_for_what_does",),
    ),
    Guard(
        "a damaged snapshot is ignored",
        "snapshots.py",
        "if digest_of(*snapshot[:5]) != snapshot.digest:",
        "if not snapshot.digest:",
        ("store/test_snapshots.py::test_what_does_not_fit_the_log_is_passed_over_for_what_does",),
    ),
    Guard(
        "each commit is synced",
        "store/schema.py",
        'db.pragma("synchronous", "full")',
        'db.pragma("synchronous", "normal")',
        ("store/test_sqlite_faults.py::test_each_append_is_synced_before_it_returns",),
    ),
    # ------------------------------------------------------------ the canonical form
    Guard(
        "a bool is no number",
        "canonical_writer.py",
        '    bool: lambda writer, value: writer.out.append("true" if value else "false"),\n',
        "",
        (CANON + "the_short_road_and_the_long_road_write_the_same_text",),
    ),
    Guard(
        "minus zero is zero",
        "canonical_writer.py",
        "return str(int(number))  # -0.0 is 0",
        "return str(int(number)) if number else repr(number)",
        (CANON + "a_value_has_the_text_of_its_golden_vector",),
    ),
    Guard(
        "what is no number has no form",
        "canonical_writer.py",
        "if not math.isfinite(number):",
        "if math.isinf(number):",
        (CANON + "what_has_no_form_is_refused_and_its_place_named",),
    ),
    Guard(
        "a lone surrogate has no form",
        "canonical_writer.py",
        "            text.encode()\n",
        '            text.encode("utf-8", "surrogatepass")\n',
        (CANON + "what_has_no_form_is_refused_and_its_place_named",),
    ),
    Guard(
        "nobody's data can pass for a tag",
        "canonical_writer.py",
        'if any(key.startswith("$") for key in fields):',
        'if any(key.startswith("$$") for key in fields):',
        (CANON + "a_value_has_the_text_of_its_golden_vector",),
    ),
    Guard(
        "keys are in the order of their UTF-16 code units",
        "canonical_writer.py",
        "else sorted(fields, key=_utf16):",
        "else sorted(fields):",
        (CANON + "a_value_has_the_text_of_its_golden_vector",),
    ),
    Guard(
        "a large float never has the text of an int",
        "canonical_writer.py",
        "if size < _EXACT_FLOATS and number.is_integer():",
        "if number.is_integer():",
        (CANON + "a_value_has_the_text_of_its_golden_vector",),
    ),
    Guard(
        "two keys of one text are refused",
        "canonical_writer.py",
        "if len(fields) != len(value):",
        "if len(fields) > len(value):",
        (CANON + "two_keys_of_one_text_are_refused",),
    ),
)


REDUNDANT: dict[str, str] = {
    "obligations.py: a step whose effect another task made (`record.origin`) is no obligation": (
        "such a step has no intent, so that the next condition (`policy_digest is not None`) leaves it out too"
    ),
    "passes.py: a cancelled task's code is stopped at its next call (`Scope.check`)": (
        "the step's own loop begins nothing new in a cancelled task; the check only ends the code sooner"
    ),
    "executor.py: a write is not decided while another one is in doubt (rule 8)": (
        "the append of its intent is refused for the same reason (`log.py`); without the first check the run would decide for ever, "
        "so what is taken away above is what both rest on, and the second check by itself"
    ),
}
"""Checks that stand twice: the text, and why no test can see it go by itself."""
