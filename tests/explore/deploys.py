"""Steps that a deploy changes while their intent is open: real definitions, and what the real `tighten` makes of them."""

from __future__ import annotations

from typing import Any

from doubtless import injected
from doubtless.declaring import define
from doubtless.effects import StepDefinition, tighten

from .world import Step


def _ask(idempotency_key: str) -> None:
    """A query; the world of the exploration answers in its place."""


def _pay(order: str, idempotency_key: str = injected()) -> None:
    """A write; nobody calls it."""


def declared(effect: str, **options: Any) -> StepDefinition:
    given = {"timeout": "PT2S", "attempts": 2, "query_attempts": 2, "backoff": "PT0S", "settle_within": "PT60S", "query": _ask}
    definition, faults = define("pay", call=_pay, effect=effect, **{**given, **options})
    assert definition is not None and not faults, faults
    return definition


def deployed(before: StepDefinition, after: StepDefinition, *, tightened: bool = True) -> Step:
    """A write whose second owner runs another release; `tightened` False: as if rule 10 were not there."""
    stricter, gone = tighten(before.policy(), after)
    assert not gone
    return Step("1", before.effective, later=stricter if tightened else after.effective)


LONG = declared("non_idem_write", absent_after="PT8S", on_absent="retry")
LOOSER = declared("non_idem_write", absent_after="PT2S", on_absent="retry", attempts=3)
WINDOW = declared("idem_write", absent_after="PT8S", on_absent="retry", key_window="PT14S")
FOR_EVER = declared("idem_write", absent_after="PT8S", on_absent="retry")
NO_KEY = declared("non_idem_write", absent_after="PT8S", on_absent="retry")

DEPLOYED = deployed(LONG, LOOSER)
DEPLOYED_WINDOW = deployed(WINDOW, FOR_EVER)
DEPLOYED_CLASS = deployed(FOR_EVER, NO_KEY)
UNTIGHTENED = deployed(LONG, LOOSER, tightened=False)
UNTIGHTENED_WINDOW = deployed(WINDOW, FOR_EVER, tightened=False)
