"""``doubtless demo``: the reconciliation example, from the wheel or from the source tree.

The example's one home is ``examples/reconciliation``. The wheel carries a copy of it as
``doubtless/demo/reconciliation``; in a source tree it is found where it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_EXAMPLES = _HERE.parents[2] / "examples"

if not (_HERE / "reconciliation").is_dir() and (_EXAMPLES / "reconciliation").is_dir():
    __path__.append(str(_EXAMPLES))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Returns its exit code: 0, or 1 if a count at the server is off, or 2 if the files are bad."""
    run = import_module(f"{__name__}.reconciliation.demo").main
    code: int = run(argv)
    return code
