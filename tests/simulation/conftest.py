"""What killed processes leave behind (coroutines that nobody awaits any more) is collected without a word."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    kept = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = kept
