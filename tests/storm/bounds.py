"""How long each kind of trouble may last, and what the step table of the storm says because of it.

`absent_after` is a promise of whoever writes the step table: so long after the last possible send nothing lands any more, and the
other side's search shows what has. With leases the last possible send is the end of the lease and the step's timeout. What may
come later than that is what the storm itself makes late: a worker that is stopped between the look at its lease and the sending
and sends when it is woken (`pause`), an effect that the other side makes late (`landing`), a search that lags (`lag`), and what
the machine needs for it (`slack`). So `absent_after` is the sum of these four, and the storm keeps each of them.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Bounds(NamedTuple):
    """Seconds. `pause`: the shortest and the longest stop of a worker; the shortest is longer than any claim lasts. `pace`: how long
    a step of the storm takes its time before its request, at most, and a quarter of it after it: so that trouble meets steps.
    `believed`: the `absent_after` of a step table that promises too much.
    """

    lease: float = 1.0
    timeout: float = 1.6
    pause: tuple[float, float] = (6.5, 9.0)
    landing: float = 5.0
    lag: float = 1.5
    slack: float = 3.0
    deadline: float = 40.0
    settle_within: float = 45.0
    pace: float = 0.9
    believed: float | None = None

    @property
    def late(self) -> float:
        """How long after the end of its lease and its timeout something may still land, or be seen to have landed."""
        return self.pause[1] + self.landing + self.lag + self.pace + self.slack

    @property
    def absent_after(self) -> float:
        return self.late if self.believed is None else self.believed

    @property
    def over(self) -> float:
        """How long after a call began nothing of it can land any more, whoever made it."""
        return 2 * self.lease + self.timeout + self.late

    def check(self) -> None:
        """Refuse bounds under which a stopped worker would still have its task, or a step table that promises too much."""
        assert self.pause[0] > 2 * self.lease + self.timeout, "a worker that is stopped has to lose its task"
        assert self.landing > self.timeout, "some effects have to land after their call was given up"
        assert 1.5 * self.pace < self.timeout
        assert self.slack > 0, "without slack the machine itself is later than `absent_after` says"

    def text(self) -> str:
        return json.dumps(self)


def duration(seconds: float) -> str:
    return f"PT{seconds:g}S"


def read(text: str) -> Bounds:
    lease, timeout, pause, *rest = json.loads(text)
    return Bounds(lease, timeout, tuple(pause), *rest)
