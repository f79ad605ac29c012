"""What the simulation has found in the product: each a scenario that a seed was shrunk to, and that once went wrong."""

from __future__ import annotations

import random

import pytest

from .many import simulate
from .scenario import Call, Child, Fault, Read, Scenario, Sleep, Together, Write


def test_the_late_result_of_a_read_whose_attempt_could_not_be_recorded_is_no_row_that_stands_for_the_step() -> None:
    """The row had no params: the step was settled by it, and the task's code had diverged from it for ever."""
    nodes = (Read(calls=(Call("hangs"),)),)
    for schedule in range(1, 11):
        for at in range(12, 18):
            assert simulate(Scenario(nodes, faults=(Fault("kill", 7), Fault("busy", at)), schedule=schedule)).wrong == []


def test_a_task_that_the_store_does_not_take_back_when_its_last_call_has_ended_is_given_back_later() -> None:
    """It stayed owned, by a worker that did not run it, until that worker's process ended."""
    nodes = (Write("query", calls=(Call("slow"),), looks=("pending",)),)
    for at in range(20, 32):
        assert simulate(Scenario(nodes, faults=(Fault("full", at, times=2),), host="worker")).wrong == []


def test_a_worker_leaves_a_task_alone_whose_child_is_frozen_until_it_is_thawed() -> None:
    """It claimed the parent again and again, without a pause, as long as the freeze lasted."""
    faults = (Fault("freeze", 0, seconds=5.0), Fault("cancel", 0))
    for schedule in range(1, 6):
        scenario = Scenario((Child((Write("blind", undo=Write()),)),), faults, host="worker", schedule=schedule)
        assert simulate(scenario).wrong == []


def test_a_sleep_beside_a_doubt_does_not_keep_the_event_loop_from_settling_it() -> None:
    """The sleep's own row waited, in the loop's thread, for the branch that needed the loop: for ever."""
    wait = Write("once", calls=(Call("busy"),), retry_rejected=True)
    for schedule in range(1, 9):
        nodes = (Together(((wait, Sleep()), (Write(calls=(Call("dropped"),)),))),)
        assert simulate(Scenario(nodes, is_async=True, schedule=schedule)).wrong == []


def test_a_sync_step_beside_a_doubt_does_not_keep_the_event_loop_from_settling_it() -> None:
    """It waited, in the loop's thread, for the branch that needed the loop: for ever."""
    wait = Write("once", calls=(Call("busy"),), retry_rejected=True)
    for schedule in range(1, 9):
        nodes = (Together(((wait, Write("blind", plain=True)), (Write(calls=(Call("dropped"),)),))),)
        assert simulate(Scenario(nodes, is_async=True, schedule=schedule)).wrong == []


def test_the_result_of_a_read_whose_owner_was_taken_for_dead_is_no_row_that_stands_for_the_step() -> None:
    """The row had no params: the step was settled by it, and the task's code had diverged from it for ever."""
    nodes = (Together(((Read(),), (Write("query"),))),)
    for schedule in range(6):
        for at in range(14, 19):
            assert simulate(Scenario(nodes, faults=(Fault("unlock", at),), schedule=schedule)).wrong == []


def test_a_result_is_recorded_also_when_a_person_answers_its_case_at_that_moment() -> None:
    """The row that closed the case was refused as answered already, and with it the result: it was lost, and waited for."""
    first = (Write(calls=(Call("unsent", seconds=9.9), Call("unsent"))),)
    second = (Write("query", calls=(Call("late", after=60.0),), looks=("pending", "pending")),)
    third = (Write("blind", calls=(Call("handle", seconds=2.0),)), Write("once", calls=(Call("handle"),)))
    nodes = (Together((first, second, third)),)
    for schedule in range(8, 16):
        assert simulate(Scenario(nodes, answers=("truth", "abandon", "slowly"), schedule=schedule)).wrong == []


def test_a_sync_step_that_waits_for_a_business_key_does_not_keep_the_event_loop_from_its_holder() -> None:
    """It looked again and again, in the loop's thread, at a holder that needed the loop: for ever."""
    nodes = (Together(((Write("once"),), (Write("once", plain=True),))),)
    for schedule in range(8):
        assert simulate(Scenario(nodes, is_async=True, schedule=schedule)).wrong == []


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.prove)])
def test_a_branch_beside_a_doubt_that_takes_an_hour_looks_less_and_less_often(every: int) -> None:
    """It looked twenty times a second until the absence counted, which a clock that was set back had put off."""
    nodes = (Together(((Write(calls=(Call("dropped"),)),), (Write(), Write("window")))),)
    for at in range(20 + random.SystemRandom().randrange(every), 30, every):
        assert simulate(Scenario(nodes, faults=(Fault("jump", at, seconds=-7200.0),))).wrong == []


def test_a_child_whose_run_a_failing_store_has_cut_off_is_tried_again_by_the_worker() -> None:
    """Its parent had been resumed for it once, which the worker took for enough: the doubt in it was silent, for ever."""
    calls = (Call("late", after=1.0), Call("raises"), Call("late", after=1.0))
    nodes = (Child((Write("key", calls=calls), Write(calls=(Call("handle"),)))),)
    for at in range(18, 23):
        faults = (Fault("unlock", at), Fault("after", 16, times=40))
        assert simulate(Scenario(nodes, faults, is_async=True, host="worker")).wrong == []


def test_a_late_refusal_that_the_store_does_not_take_is_offered_again() -> None:
    """That the running call had ended was lost, and a person's answer waited for its end for as long as the process lived."""
    for at in range(22, 27):
        nodes, faults = (Write(calls=(Call("refused", seconds=9.9),)),), (Fault("busy", at),)
        assert simulate(Scenario(nodes, faults, schedule=1)).wrong == []


def test_a_child_whose_parent_could_not_be_claimed_is_tried_again_by_the_worker() -> None:
    """It counted as tried, although the store had refused the claim: a person's answer to it was slept through."""
    nodes = (Write(), Child((Write("blind", calls=(Call("slow", after=1.0),)),)))
    for at in range(46, 53):
        assert simulate(Scenario(nodes, faults=(Fault("io", at),), host="worker")).wrong == []


def test_a_branch_that_waits_for_the_business_key_of_another_branch_does_not_park_it_for_ever() -> None:
    """At each resume it parked the pass before the other had begun, whose retry was due."""
    first = (Write("blind", looks=("raises",), lag=20.0, on_absent="fail", retry_rejected=True), Write("once", plain=True))
    refused = (Call("refused", seconds=2.0), Call("unsent"), Call("refused", seconds=2.0))
    third = Write("once", calls=refused, on_absent="fail", retry_rejected=True, plain=True)
    nodes = (Together((first, (Write("query", calls=(Call("raises", seconds=9.9),), lag=20.0),), (third,))),)
    for at in range(24, 34):
        faults = (Fault("freeze", at, seconds=5.0),)
        assert simulate(Scenario(nodes, faults, is_async=True, schedule=995478621)).wrong == []


def test_a_step_of_the_library_that_a_stopped_process_gave_late_is_no_error_of_the_code() -> None:
    """A sleep's own step is in no table: with a late result of it the task stood as a code error, at each retry again."""
    nodes = (Together(((Sleep(),), (Sleep(30.0),))),)
    for at in range(12, 18):
        faults = (Fault("kill", 5), Fault("stop", at, seconds=30.0))
        assert simulate(Scenario(nodes, faults, schedule=828990639)).wrong == []
