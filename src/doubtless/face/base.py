"""What every part of the public face has at hand: the app's table, its runs, and the parts that `app.py` puts together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..calls import Runtime
from ..runs import Runs
from ..secrets import Vault
from ..steps import Step, Task
from ..store.base import Head, Store
from ..table import StepTable

if TYPE_CHECKING:
    from ..answering import Authorize
    from ..inbox import Case
    from ..store.blobstore import BlobStore


class Face:
    """The half of an app that its public methods share. `app.Doubtless` makes what is named here."""

    _authorize: Authorize | None
    _case_hooks: list[Callable[[Case], object]]
    _checked: bool
    _faults: list[str]
    _lock: threading.RLock
    _randomness: Callable[[int], bytes]
    _runs: Runs
    _steps: dict[str, Step[..., Any]]
    _table: StepTable
    _tasks: dict[str, Task[..., Any]]
    _vault: Vault
    _wake_hooks: list[Callable[[str], object]]

    if TYPE_CHECKING:  # given by `app.Doubtless`

        @property
        def url(self) -> str: ...
        @property
        def store(self) -> Store: ...
        @property
        def runtime(self) -> Runtime: ...
        @property
        def reading(self) -> Runtime: ...
        def notify(self) -> None: ...
        def _elsewhere(self, store: Store) -> BlobStore | None: ...
        def _validate(self) -> None: ...
        def _known(self, task_id: str) -> Head: ...
        def _woken(self, task_ids: Iterable[str]) -> None: ...
        def _pass_on(self, task_id: str) -> None: ...
        def _settle_within(self, step: str) -> int: ...
