"""The app of `undoing` as the command line finds it: MODULE:APP, what it is told by the environment."""

from __future__ import annotations

import json
import os

from .undoing import CELL, Cell, build

app, task, _ = build(Cell(**json.loads(os.environ[CELL])))
