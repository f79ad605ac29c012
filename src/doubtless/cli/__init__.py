"""The command line ``doubtless``. It talks to the app only; `main` is where every error becomes one line and a code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (`doubtless --help` lists them).

    Meaning: what was asked for goes to stdout; progress and the one line of an error go to stderr. With ``--json``
    stdout holds exactly one JSON document (`log`: one per event), also when the command fails.
    """
    from .group import Invocation, doubtless
    from .reporting import prepare_streams, report, silence

    arguments = list(sys.argv[1:] if argv is None else argv)
    called = Invocation(arguments)
    prepare_streams()
    try:
        code = doubtless.main(arguments, prog_name="doubtless", standalone_mode=False, obj=called)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        return silence()
    except BaseException as error:  # noqa: BLE001  this is where every error ends, as one line and a code
        return report(error, called)
    return int(code or 0)
