"""The slices, as data: which writes, which options, and how often the world may do what."""

from __future__ import annotations

from .deploys import DEPLOYED, DEPLOYED_CLASS, DEPLOYED_WINDOW, UNTIGHTENED, UNTIGHTENED_WINDOW
from .factors import missing_pairs
from .world import S, Slice, Step, policy

QUERIED = policy(has_query=True, absent_after_us=8 * S, on_absent="retry", attempts=2)
FAILS = QUERIED._replace(on_absent="fail")
KEYED = policy("idem_write", attempts=3)
WINDOWED = policy("idem_write", attempts=3, key_window_us=14 * S, has_query=True, absent_after_us=8 * S, on_absent="retry")
BLIND = policy(attempts=2)

SOONER = BLIND._replace(settle_within_us=6 * S)
REFUSED = policy("idem_write", attempts=3, retry_rejected=True, has_query=True, absent_after_us=8 * S, on_absent="retry")
UNDO = policy(attempts=2, has_query=True, absent_after_us=4 * S, on_absent="retry")
UNDO_KEYED = policy("idem_write", attempts=2)

CRASHES = {"crash": 2, "owners": 3, "lost": 1, "late": 2, "lag": 1, "looks": 5, "ticks": 8}
THREADS = {"overrun": 1, "lost": 1, "late": 2, "lag": 1, "looks": 4, "ticks": 9, "owners": 2, "crash": 1}
STOPPED = {"stopped": 1, "pause": 2, "owners": 2, "lost": 1, "late": 2, "lag": 1, "looks": 4, "ticks": 8}
ANSWERED = {
    "answers": 1, "crash": 1, "owners": 2, "lost": 1, "late": 1, "lag": 1, "unclear": 1, "several": 1, "looks": 4, "ticks": 6,
}  # fmt: skip
TWICE = {"answers": 2, "crash": 1, "owners": 2, "lost": 2, "late": 1, "ticks": 7}
REFUSING = {"rejected": 2, "not_sent": 1, "crash": 1, "owners": 2, "lost": 1, "late": 1, "pending": 1, "looks": 3, "ticks": 6}

JUMPS = {"jump": 2, "lost": 1, "late": 1, "lag": 1, "crash": 1, "owners": 2, "looks": 4, "ticks": 6}
BOOTS = {"jump": 1, "reboot": 1, "owners": 2, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 7}
RESTORED = {"restored": 1, "owners": 2, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 6}

DEPLOYS = {"crash": 2, "owners": 3, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 7}

LARGE = [
    Slice(
        "crash-queried",
        "a queried write that is retried when proven absent: crashes, takeovers, late landings, a lagging index",
        (Step("1", QUERIED),),
        CRASHES,
        short=True,
    ),
    Slice("crash-fails", "the same, given up when proven absent", (Step("1", FAILS),), CRASHES),
    Slice("crash-keyed", "an idem_write whose key is remembered for ever", (Step("1", KEYED),), CRASHES, short=True),
    Slice(
        "crash-windowed",
        "an idem_write whose key is forgotten: inside its window it is resent, then looked for",
        (Step("1", WINDOWED),),
        CRASHES,
    ),
    Slice("crash-blind", "a write that cannot be asked about", (Step("1", BLIND),), CRASHES, short=True),
    Slice(
        "thread-queried",
        "calls that overrun: their threads run on, send late, and come back",
        (Step("1", QUERIED),),
        {**THREADS, "overrun": 2},
        short=True,
    ),
    Slice("thread-windowed", "the same of an idem_write with a window", (Step("1", WINDOWED),), THREADS),
    Slice("stopped-queried", "an owner that is stopped, taken over and woken", (Step("1", QUERIED),), STOPPED, short=True),
    Slice("stopped-keyed", "the same of an idem_write", (Step("1", KEYED),), STOPPED),
    Slice("stopped-windowed", "the same of an idem_write with a window", (Step("1", WINDOWED),), STOPPED),
    Slice("answered-queried", "a person's answers to doubts about a queried write", (Step("1", QUERIED),), ANSWERED),
    Slice("answered-blind", "a person's answers where nobody else can be asked", (Step("1", BLIND),), TWICE),
    Slice(
        "answered-sooner",
        "a case by settle_within",
        (Step("1", SOONER._replace(has_query=True, absent_after_us=8 * S)),),
        ANSWERED,
    ),
    Slice("refused", "refusals, and the key's next generation", (Step("1", REFUSED),), REFUSING),
    Slice(
        "undo-queried",
        "a compensation with a deadline: crashes, pauses, late landings",
        (Step("1", KEYED), Step("~1", UNDO, undoes=0, within_us=9 * S)),
        {"crash": 1, "owners": 2, "pause": 1, "lost": 1, "late": 1, "looks": 3, "ticks": 6, "answers": 1},
    ),
    Slice(
        "two-queried",
        "two writes, one after the other",
        (Step("1", QUERIED), Step("2", QUERIED)),
        {"crash": 2, "owners": 3, "lost": 1, "late": 1, "looks": 4, "ticks": 8},
    ),
    Slice(
        "two-parallel",
        "two writes at once (rule 8)",
        (Step("1", QUERIED), Step("2", KEYED)),
        {"crash": 1, "owners": 2, "lost": 1, "late": 1, "looks": 3, "ticks": 6},
        parallel=True,
    ),
    Slice(
        "handles",
        "the other side's id is recorded while the call runs: then an absence is no proof",
        (Step("1", QUERIED),),
        {"handle": 1, "overrun": 1, "crash": 1, "owners": 2, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 6},
    ),
    Slice(
        "slow-looks",
        "look-backs that take time: what they answer is older than their row",
        (Step("1", QUERIED),),
        {"slow": 2, "lost": 1, "late": 1, "lag": 1, "several": 1, "answers": 1, "looks": 4, "ticks": 6},
    ),
    Slice(
        "answered-overrun",
        "two answers while a call that overran still runs, and may name its handle",
        (Step("1", QUERIED),),
        {"answers": 2, "several": 2, "overrun": 1, "late": 1, "handle": 1, "looks": 4, "ticks": 6},
    ),
    Slice(
        "windowed-refused",
        "refusals and a person's answer around a key that is forgotten",
        (Step("1", WINDOWED._replace(retry_rejected=True)),),
        {"rejected": 1, "lost": 2, "answers": 1, "several": 1, "late": 1, "looks": 3, "ticks": 5},
    ),
    Slice(
        "clock-queried",
        "a wall clock that is set, forward and back, around an absence that is to count",
        (Step("1", QUERIED),),
        JUMPS,
    ),
    Slice("clock-windowed", "the same around a key that is forgotten", (Step("1", WINDOWED),), JUMPS),
    Slice(
        "clock-slow",
        "the same while a look-back is on its way",
        (Step("1", QUERIED),),
        {"jump": 2, "slow": 1, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 6},
    ),
    Slice(
        "clock-undo",
        "the same around the deadline of a compensation",
        (Step("1", KEYED), Step("~1", UNDO, undoes=0, within_us=9 * S)),
        {"jump": 1, "crash": 1, "owners": 2, "lost": 1, "late": 1, "looks": 3, "ticks": 6},
    ),
    Slice(
        "clock-answered",
        "the same around a person's answer",
        (Step("1", QUERIED),),
        {"jump": 1, "answers": 1, "several": 1, "lost": 1, "late": 1, "lag": 1, "looks": 4, "ticks": 6},
        short=True,
    ),
    Slice(
        "host-anew",
        "a host that is started anew, its clock being right over it, or a clock that is set",
        (Step("1", QUERIED),),
        BOOTS,
        short=True,
    ),
    Slice(
        "restored-queried",
        "a restored backup (suspect mode): the log knows less than was done of a queried write",
        (Step("1", QUERIED),),
        RESTORED,
        short=True,
    ),
    Slice(
        "restored-windowed",
        "the same of an idem_write whose key may be forgotten by then",
        (Step("1", WINDOWED),),
        RESTORED,
        short=True,
    ),
    Slice(
        "restored-blind",
        "the same of a write that only a person knows about, with answers before and after",
        (Step("1", BLIND),),
        {"restored": 1, "owners": 3, "lost": 1, "late": 1, "answers": 2, "ticks": 6},
    ),
    Slice(
        "restored-answered",
        "the same with a person's answer about a queried write",
        (Step("1", QUERIED),),
        {"restored": 1, "owners": 2, "lost": 1, "late": 1, "answers": 1, "several": 1, "looks": 4, "ticks": 6},
    ),
    Slice("deploy-looser", "a deploy with a shorter absent_after while the intent is open", (DEPLOYED,), DEPLOYS, short=True),
    Slice("deploy-window", "a deploy without the key_window", (DEPLOYED_WINDOW,), DEPLOYS),
    Slice("deploy-class", "a deploy that makes an idem_write a non_idem_write", (DEPLOYED_CLASS,), DEPLOYS, short=True),
]

SLICES = [*LARGE, *missing_pairs(LARGE)]
"""The larger ones, and one for each pair of factors that none of them has."""

LOOSENED = [
    Slice("untightened", "a deploy that holds for an open intent as it is", (UNTIGHTENED,), DEPLOYS),
    Slice("untightened-window", "the same, without the key_window", (UNTIGHTENED_WINDOW,), DEPLOYS),
]
"""For a planted bug: what rule 10 is for."""

BROKEN = [
    Slice(
        "broken-absent_after",
        "an absence is taken for proof, and the request lands later",
        (Step("1", QUERIED),),
        CRASHES,
        broken=frozenset({"absent_after"}),
    ),
    Slice(
        "broken-key_window",
        "a keyed request lands when its key is forgotten",
        (Step("1", WINDOWED),),
        CRASHES,
        broken=frozenset({"key_window"}),
    ),
    Slice(
        "broken-pause",
        "a stopped owner, taken over, sends what it was about to send",
        (Step("1", QUERIED),),
        STOPPED,
        broken=frozenset({"pause"}),
    ),
    Slice(
        "broken-pause-keyed",
        "a thread sends after its timeout, when its key is forgotten",
        (Step("1", WINDOWED),),
        THREADS,
        broken=frozenset({"pause"}),
    ),
    Slice(
        "broken-clock",
        "a clock is set forward, and the host started anew: the wait looks longer than it was",
        (Step("1", QUERIED),),
        BOOTS,
        broken=frozenset({"clock"}),
    ),
    Slice("broken-person", "a person's word that nothing was to check", (Step("1", BLIND),), TWICE, broken=frozenset({"person"})),
]
"""With one assumption taken away each: the explorer has to find the double, and says which one it took."""
