"""What must come of each cell of the matrix, by class and look-back: read off the protocol's table, not off the code."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """How things stand when the machine has done what it can, with the clock turned as far as it asks.

    `stands`: the task; `settled_by`: the write in its middle, None while it is in doubt; `effects`, `calls`: of that write.
    """

    says: str
    stands: str
    effects: int
    calls: int
    settled_by: str | None = None


WORDS = {
    "reply": Word("its reply stands, it is not called again", "done", 1, 1, "its reply"),
    "again": Word("it is called again, without a second effect", "done", 1, 2, "its reply"),
    "found": Word("the look-back settles it", "done", 1, 1, "the look-back found it"),
    "absent": Word("proven absent, it is not applied", "failed", 0, 1, "not_applied"),
    "ask0": Word("a person is asked", "needs_human", 0, 1),
    "ask1": Word("a person is asked", "needs_human", 1, 1),
    "wait": Word("it waits, no absence counts", "waiting", 0, 1),
    # The one exception: an `absent_after` that is shorter than the other side's lag is a false declaration, and is believed.
    "false": Word(
        "THE EXCEPTION, a false absent_after is believed: not_applied, though it landed", "failed", 1, 1, "not_applied"
    ),
    "twice": Word("THE EXCEPTION, a false absent_after is believed: two effects", "done", 2, 2, "its reply"),
    "asked": Word("THE EXCEPTION, a false absent_after is believed: a person is asked", "needs_human", 1, 1),
}
EXCEPTIONS = ("false", "twice", "asked")


class Look(NamedTuple):
    """A kind of look-back: what the step declares, and how the other side's search is."""

    words: str
    query: str | None = "found"
    search: str = "honest"
    lags: bool = False
    absent_after: str | None = None
    on_absent: str | None = None


LAG = 120  # seconds in which a lagging search does not show what is there
LONGER, SHORTER = "PT4M", "PT20S"

LOOKS = {
    "none": Look("no look-back", query=None),
    "honest": Look("an honest look-back"),
    "honest-fail": Look("an honest look-back, an absence fails", absent_after=SHORTER, on_absent="fail"),
    "honest-retry": Look("an honest look-back, an absence retries", absent_after=SHORTER, on_absent="retry"),
    "lagging": Look("a lagging look-back", lags=True),
    "longer-fail": Look("a lagging look-back, absent_after longer, fail", lags=True, absent_after=LONGER, on_absent="fail"),
    "longer-retry": Look("a lagging look-back, absent_after longer, retry", lags=True, absent_after=LONGER, on_absent="retry"),
    "shorter-fail": Look("a lagging look-back, absent_after shorter, fail", lags=True, absent_after=SHORTER, on_absent="fail"),
    "shorter-retry": Look("a lagging look-back, absent_after shorter, retry", lags=True, absent_after=SHORTER, on_absent="retry"),
    "raising": Look("a raising look-back", search="raising"),
    "several": Look("a look-back that finds several", search="several"),
    "empty": Look("a look-back that returns an empty list", query="list", search="empty"),
}


class Cell(NamedTuple):
    """One kind of trouble: its letter, its words in a test's name, and the reports from the field that it is about."""

    letter: str
    words: str
    cases: str = ""


CELLS = {
    "A": Cell("A", "killed inside the step before the effect", "C49"),
    "late": Cell("A", "killed with its request still on the way", "C29 C55"),
    "B": Cell("B", "killed right after the effect", "C49 C57"),
    "C": Cell("C", "killed after the record", "C11 C13"),
    "timeout": Cell("D", "the write landed and the client timed out", "C24"),
    "reply": Cell("D", "the write landed and the reply was lost", "C22 C23"),
    "500": Cell("D", "the write landed and the answer was 500", "C24"),
    "overrun": Cell("D", "the write landed and the call overran", "C84"),
    "race": Cell("E", "two processes start it at once", "C81 C90"),
    "resumed": Cell("E", "two processes resume it at once", "C81"),
    "slow": Cell("I", "a slow live owner", "C80"),
    "slower": Cell("I", "a live owner whose call overran before the effect", "C84"),
    "stopped": Cell("J", "the owner stopped and woken later", "C82"),
    "woken": Cell("J", "the owner stopped past its timeout and woken", "C82"),
    "ended": Cell("J", "the owner stopped and then killed", "C87"),
    "inside": Cell("K", "killed right after the effect, inside the key's window", "C48"),
    "over": Cell("K", "killed right after the effect, the key's window over", "C48"),
    "over0": Cell("K", "killed before the effect, the key's window over", "C48"),
    "budget": Cell("K", "every reply lost until the attempts are used up", "C30"),
}

NON_IDEM_WRITE = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped woken  ended
none          ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1   ask1
honest        ask0   found  found  reply  found   found  found  found   reply  found   reply  ask0   reply   found  found
honest-fail   absent found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found  found
honest-retry  again  found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found  found
lagging       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1   ask1
longer-fail   absent found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found  found
longer-retry  again  found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found  found
shorter-fail  absent false  false  reply  false   false  false  found   reply  false   reply  wait   reply   found  false
shorter-retry again  twice  twice  reply  twice   twice  twice  found   reply  twice   reply  wait   reply   found  twice
raising       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1   ask1
several       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1   ask1
empty         ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1   ask1
"""
"""Look-backs decide. `late`: the request lands after the first look. `overrun`, `slower`, `woken`: while the call's thread
runs, no absence counts, however short `absent_after` is."""

WITH_A_KEY = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped woken  ended  inside
any           again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  again
"""
"""The key decides while the other side knows it, whatever the look-back is."""

KEY_GONE = """
              over   over0  budget
none          ask1   ask0   ask1
honest        found  ask0   found
honest-fail   found  absent found
honest-retry  found  again  found
lagging       ask1   ask0   ask1
longer-fail   found  absent found
longer-retry  found  again  found
shorter-fail  false  absent false
shorter-retry twice  again  asked
raising       ask1   ask0   ask1
several       ask1   ask0   ask1
empty         ask1   ask0   ask1
"""
"""Afterwards it is as a non_idem_write; with all attempts used up, a cleared one asks a person."""

READ = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped woken  ended
none          again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again
"""
"""A read is made again; one that is recorded is not."""


def parse(table: str) -> dict[tuple[str, str], str]:
    """A table as (look-back, cell) -> word."""
    head, *rows = table.strip("\n").splitlines()
    return {
        (look, cell): word
        for name, *words in map(str.split, rows)
        for look in (LOOKS if name == "any" else [name])
        for cell, word in zip(head.split(), words, strict=True)
    }


EXPECTED = {"non_idem_write": parse(NON_IDEM_WRITE), "idem_write": parse(WITH_A_KEY) | parse(KEY_GONE), "read": parse(READ)}
