"""For people's own tests: an app in a store and on a clock of its own, faults to order, and a world that counts.

    with harness(app, tmp_path) as h:
        h.kill(create_adjustment, after="effect")
        with pytest.raises(Killed):
            h.run(reconcile, "r1", day="2026-11-28")
        h.run(reconcile, "r1", day="2026-11-28")
        assert h.effects(create_adjustment) == 1

Imported only by those who test: `import doubtless` does not load it.
"""

from .clock import FakeClock
from .crashtest import CrashReport, crashtest
from .harness import Harness, harness
from .life import Killed
from .world import CountingWorld

__all__ = ["CountingWorld", "CrashReport", "FakeClock", "Harness", "Killed", "crashtest", "harness"]
