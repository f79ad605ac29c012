"""What must come of each cell of the matrix, by class and look-back: read off the protocol's table, not off the code.

A word says how the step stands when the machine has done what it can, with the clock turned as far as it asks:

    word     the log says                          effects  attempts
    reply    done, by its own reply                   1        1
    again    done, by a later attempt's reply         1        2 (of a lost budget: 3)
    found    done, by the look-back                   1        1
    late     done, by a reply that came too late      1        1
    absent   not_applied, absence proven              0        1
    ask0     in doubt, a person is asked              0        1
    ask1     in doubt, a person is asked              1        1
    wait     in doubt, with a time to look again      0        1
    false    not_applied                              1        1    the one exception: a declared `absent_after`
    twice    done, by a later attempt's reply         2        2    that is shorter than the other side's lag
"""

from __future__ import annotations

from typing import NamedTuple


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
    """One kind of trouble, in words for a test's name, and how the test makes it."""

    letter: str
    words: str


CELLS = {
    "A": Cell("A", "killed inside the step before the effect"),
    "late": Cell("A", "killed with its request still on the way"),
    "B": Cell("B", "killed right after the effect"),
    "C": Cell("C", "killed after the record"),
    "timeout": Cell("D", "the write landed and the client timed out"),
    "reply": Cell("D", "the write landed and the reply was lost"),
    "500": Cell("D", "the write landed and the answer was 500"),
    "overrun": Cell("D", "the write landed and the call overran"),
    "race": Cell("E", "two processes start it at once"),
    "resumed": Cell("E", "two processes resume it at once"),
    "slow": Cell("I", "a slow live owner"),
    "slower": Cell("I", "a live owner whose call overran before the effect"),
    "stopped": Cell("J", "the owner stopped and woken later"),
    "ended": Cell("J", "the owner stopped and then killed"),
    "inside": Cell("K", "killed right after the effect, inside the key's window"),
    "over": Cell("K", "killed right after the effect, the key's window over"),
    "over0": Cell("K", "killed before the effect, the key's window over"),
    "budget": Cell("K", "every reply lost until the attempts are used up"),
}

NON_IDEM_WRITE = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped ended
none          ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1
honest        ask0   found  found  reply  found   found  found  found   reply  found   reply  ask0   reply   found
honest-fail   absent found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found
honest-retry  again  found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found
lagging       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1
longer-fail   absent found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found
longer-retry  again  found  found  reply  found   found  found  found   reply  found   reply  wait   reply   found
shorter-fail  absent false  false  reply  false   false  false  found   reply  false   reply  wait   reply   false
shorter-retry again  twice  twice  reply  twice   twice  twice  found   reply  twice   reply  wait   reply   twice
raising       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1
several       ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1
empty         ask0   ask1   ask1   reply  ask1    ask1   ask1   ask1    reply  ask1    reply  ask0   reply   ask1
"""
"""Look-backs decide. `late`: the request lands after the first look. `overrun`, `slower`: while the call's thread runs, no
absence counts, however short `absent_after` is."""

IDEM_WRITE = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped ended  inside over   over0  budget
none          again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  ask1   ask0   ask1
honest        again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  found  ask0   found
honest-fail   again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  found  absent found
honest-retry  again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  found  again  found
lagging       again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  ask1   ask0   ask1
longer-fail   again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  found  absent found
longer-retry  again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  found  again  found
shorter-fail  again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  false  absent false
shorter-retry again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  twice  again  ask1
raising       again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  ask1   ask0   ask1
several       again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  ask1   ask0   ask1
empty         again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again  again  ask1   ask0   ask1
"""
"""The key decides while the other side knows it, whatever the look-back is; afterwards it is as a non_idem_write."""

READ = """
              A      late   B      C      timeout reply  500    overrun race   resumed slow   slower stopped ended
none          again  again  again  reply  again   again  again  again   reply  again   reply  again  reply   again
"""
"""A read is made again; one that is recorded is not."""


def parse(table: str) -> dict[tuple[str, str], str]:
    """A table as (look-back, cell) -> word."""
    head, *rows = table.strip("\n").splitlines()
    cells = head.split()
    return {(name, cell): word for name, *words in map(str.split, rows) for cell, word in zip(cells, words, strict=True)}


EXPECTED = {"non_idem_write": parse(NON_IDEM_WRITE), "idem_write": parse(IDEM_WRITE), "read": parse(READ)}
