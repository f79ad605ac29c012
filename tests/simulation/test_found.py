"""What the simulation has found in the product: each a scenario that a seed was shrunk to, and that once went wrong."""

from __future__ import annotations

from .many import simulate
from .scenario import Call, Fault, Read, Scenario, Write


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
