"""The app that a worker runs and a test looks at: the crash tests' program, or the reconciliation; said by the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from examples.reconciliation.app import build as build_reconciliation

from crash.program import Scenario
from crash.program import build as build_program
from doubtless import Doubtless, Task

SCENARIO, STORE, SERVER = "ENGINES_SCENARIO", "DOUBTLESS_STORE", "RECON_SERVER"


def build(environment: Mapping[str, str] = os.environ) -> tuple[Doubtless, Task[..., Any]]:
    """The app and its task, the same in every process that is given the same environment."""
    if SCENARIO in environment:
        return build_program(Scenario(**json.loads(environment[SCENARIO])))
    recon = build_reconciliation(environment[STORE], environment[SERVER])
    return recon.app, recon.reconcile
