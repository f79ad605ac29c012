"""Makes the golden logs of this release: `python tests/replay/make_golden.py` writes tests/replay/golden/format-N/*.jsonl.

Each scenario brings a store to a state that a release can leave behind; the file holds its log, its content, what the
other side has, and what today's code makes of it. Once a release is out its files never change: the next one gets more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # as a program: what pytest does for the tests
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

from golden import FOLDER, dump, export, replayed, written
from golden_program import World, build

from doubtless import (
    Abandon,
    Deny,
    DidNotHappen,
    Doubtless,
    DoubtlessError,
    Happened,
    NotSent,
    Refused,
    Rejected,
    Retry,
    UsageError,
)
from doubtless.events import FORMAT, Kind, StepStatus, draft
from doubtless.latenews import late_result
from doubtless.testing import Harness, Killed, harness

SUMS = "SHA256SUMS"


class Stage(NamedTuple):
    """What a scenario works with."""

    app: Doubtless
    work: Any
    world: World
    h: Harness

    def run(self, task_id: str, *script: Any, wait: bool | str = True) -> None:
        """Run the scripted task, whatever comes of it."""
        try:
            self.app.run(self.work, task_id, script=list(script), wait=wait)
        except (DoubtlessError, Killed):
            pass

    def settle(self, said: Any) -> None:
        for case in self.app.inbox().cases:
            self.app.settle(case.id, said, by="anna", why="golden", shown=case.hash)

    def again(self, task_id: str, wait: bool | str = True) -> None:
        try:
            self.app.resume(task_id, wait=wait)
        except (DoubtlessError, Killed):
            pass


SCENARIOS: dict[str, Callable[[Stage], None]] = {}


def scenario(make: Callable[[Stage], None]) -> Callable[[Stage], None]:
    SCENARIOS[make.__name__.replace("_", "-")] = make
    return make


# ---------------------------------------------------------------- straight


@scenario
def done(s: Stage) -> None:
    s.run("t", ["load", "a"], ["create", "b"], ["put", "c"], ["at"], ["uuid"], ["random"], ["changed", "m"], ["order", "d"])


@scenario
def accepted(s: Stage) -> None:
    s.app.start(s.work, "t", script=[["load", "a"], ["create", "b"]])


@scenario
def failed(s: Stage) -> None:
    s.world.trouble("put", Rejected("422"), Rejected("422"), Rejected("422"))
    s.run("exhausted", ["put", "a"])
    s.run("aborted", ["load", "a"], ["abort", "no"])
    s.world.trouble("chat", Rejected("422"))
    s.run("rejected", ["try", ["chat", "a"]], ["load", "b"])


@scenario
def reads(s: Stage) -> None:
    s.world.trouble("load", "reset")
    s.run("again", ["load", "a"])
    s.world.trouble("load", "reset")
    s.run("parked", ["load", "a"], ["create", "b"], wait=False)
    s.world.trouble("load", "reset", "reset")
    s.run("exhausted", ["load", "a"])


# ---------------------------------------------------------------- doubts


@scenario
def killed_in_flight(s: Stage) -> None:
    s.h.kill("create", after="effect")
    s.run("landed", ["load", "a"], ["create", "b"], ["chat", "c"])
    s.h.kill("chat", after="intent")
    s.run("not-sent", ["load", "a"], ["chat", "b"])
    s.h.kill("put", before="record")
    s.run("keyed", ["put", "a"], ["put", "b"])


@scenario
def taken_over(s: Stage) -> None:
    s.h.kill("create", after="intent")
    s.run("t", ["create", "b"])
    s.again("t", wait=False)


@scenario
def looked_back(s: Stage) -> None:
    s.world.trouble("create", "lost")
    s.run("found", ["create", "a"])
    s.world.trouble("create", TimeoutError("no reply"))
    s.run("absent", ["create", "a"])
    s.world.trouble("create", TimeoutError("no reply"))
    s.run("waiting", ["create", "a"], wait=False)


@scenario
def asked(s: Stage) -> None:
    for task_id in ("open", "happened", "abandoned", "again", "given-up"):
        s.world.trouble("chat", TimeoutError("no reply"))
        s.run(task_id, ["try", ["chat", task_id]], ["load", "a"])
    answers = {
        "happened": Happened({"by": "hand"}), "abandoned": Abandon(), "again": DidNotHappen("retry"),
        "given-up": DidNotHappen("fail"),
    }  # fmt: skip
    for case in s.app.inbox().cases:
        if case.task_id in answers:
            s.app.settle(case.id, answers[case.task_id], by="anna", why="golden", shown=case.hash)
    for task_id in ("happened", "abandoned", "again"):
        s.again(task_id)


@scenario
def handles(s: Stage) -> None:
    s.world.trouble("order", TimeoutError("no reply"))
    s.run("t", ["order", "a"])


@scenario
def not_sent_and_refused(s: Stage) -> None:
    s.world.trouble("put", NotSent("offline"), Rejected("409"))
    s.run("generations", ["put", "a"])
    s.world.trouble("chat", NotSent("offline"))
    s.run("backoff", ["chat", "a"], wait=False)


@scenario
def late_news(s: Stage) -> None:
    for task_id, said in (("evidence", None), ("contradiction", Abandon())):
        s.world.trouble("chat", TimeoutError("no reply"))
        s.run(task_id, ["try", ["chat", "a"]])
        if said is not None:
            s.settle(said)
        row = next(row for row in s.app.store.rows(task_id) if row.kind == Kind.STEP_INTENDED)
        ref, _ = s.app.runtime.content.put('{"late":true}')
        came = draft(
            task_id, Kind.STEP_SETTLED, s.app.store.now(), step_seq=row.step_seq, path=row.path, step_name=row.step_name,
            status=StepStatus.DONE, attempt=1, output_ref=ref, epoch=row.epoch,
        )  # fmt: skip
        late_result(s.app.runtime, task_id, came, ())


# ---------------------------------------------------------------- people


@scenario
def code_errors(s: Stage) -> None:
    s.run("open", ["create", "a"], ["raise", "colour"])
    s.world.trouble("put", *[NotSent("offline")] * 3)
    s.run("exhausted", ["put", "a"])
    case = next(case for case in s.app.inbox().cases if case.task_id == "exhausted")
    s.app.settle(case.id, Retry(), by="anna", why="golden", shown=case.hash)
    s.world.trouble("put", NotSent("offline"))
    s.again("exhausted")


@scenario
def diverged(s: Stage) -> None:
    s.h.kill("load", before="effect", skip=1)
    s.run("t", ["load", "a"], ["load", "b"])
    row = draft("t", Kind.STEP_SETTLED, s.app.store.now(), step_seq=2, path="2", step_name="gone", status=StepStatus.DONE)
    s.app.store.add("t", [row])
    s.again("t")


@scenario
def outputs(s: Stage) -> None:
    s.run("open", ["odd", "a"], ["load", "b"])
    s.run("denied", ["try", ["odd", "a"]])
    case = next(case for case in s.app.inbox().cases if case.task_id == "denied")
    s.app.settle(case.id, Deny(), by="anna", why="golden", shown=case.hash)
    s.again("denied")


@scenario
def frozen(s: Stage) -> None:
    s.app.freeze("chat", why="incident")
    s.app.freeze("put", why="incident")
    s.run("t", ["create", "a"], ["chat", "b"])
    s.app.thaw("put", why="over")


# ---------------------------------------------------------------- compensation, cancel


@scenario
def failed_with_effects(s: Stage) -> None:
    s.run("undone", ["create", "a"], ["create", "b"], ["abort", "no"])
    s.world.trouble("withdraw", TimeoutError("no reply"))
    s.run("doubtful", ["create", "a"], ["create", "b"], ["abort", "no"])
    s.h.kill("withdraw", after="effect", skip=1)
    s.run("killed", ["create", "a"], ["create", "b"], ["child", [["create", "c"]]], ["abort", "no"])
    try:
        s.app.run(s.app.declared_tasks["careful"], "held", script=[["create", "a"], ["chat", "b"], ["abort", "no"]])
    except DoubtlessError:
        pass


@scenario
def cancelled(s: Stage) -> None:
    s.run("ended", ["load", "a"], ["wait_for", "never"])
    s.app.cancel("ended", by="anna", why="golden")
    s.again("ended")
    s.run("undone", ["create", "a"], ["wait_for", "never"])
    s.app.cancel("undone", by="anna", why="golden")
    s.world.trouble("chat", TimeoutError("no reply"))
    s.run("asked", ["create", "b"], ["chat", "c"])
    with suppress(DoubtlessError):
        s.app.cancel("asked", by="anna", why="golden")


# ---------------------------------------------------------------- time and events


@scenario
def waits(s: Stage) -> None:
    s.run("asleep", ["sleep", "PT1H"], ["load", "a"], wait=False)
    s.run("asked", ["wait_for", "approve"], ["load", "a"])
    s.app.start(s.work, "told", script=[["wait_for", "approve"], ["wait_for", "approve"]])
    s.app.send_event("told", "approve", {"yes": 1}, event_id="e1")
    s.run("told")
    s.again("told")
    s.app.send_event("told", "approve", {"yes": 2}, event_id="e2")


# ---------------------------------------------------------------- groups, children


@scenario
def parallel(s: Stage) -> None:
    s.h.kill("create", after="effect", skip=1)
    s.run("t", ["load", "a"], ["parallel", [["create", "b"]], [["put", "c"], ["create", "d"]], [["load", "e"]]], ["chat", "f"])


@scenario
def children(s: Stage) -> None:
    s.run("done", ["child", [["create", "a"], ["child", [["load", "b"]]]]], ["load", "c"])
    s.h.kill("chat", after="effect")
    s.run("killed", ["load", "a"], ["child", [["create", "b"], ["chat", "c"]]], ["load", "d"])
    s.run("failed", ["try", ["child", [["abort", "no"]]]])


# ---------------------------------------------------------------- business keys, forks, agents, sessions


@scenario
def business_keys(s: Stage) -> None:
    s.run("first", ["refund", "o1"])
    s.run("second", ["refund", "o1"])
    s.h.kill("refund", after="effect")
    s.run("doubtful", ["refund", "o2"])
    s.run("behind", ["refund", "o2"], wait=False)


@scenario
def forks(s: Stage) -> None:
    s.run("t", ["load", "a"], ["create", "b"], ["chat", "c"])
    s.app.fork("t", at=4)
    s.app.fork("t", at=2, task_id="asks")
    s.again("asks")
    s.app.fork("t", at=1, task_id="reuses", non_idem_write="reuse")
    s.again("reuses")


@scenario
def agents(s: Stage) -> None:
    helper = s.app.declared_tasks["helper"]
    goal = '[[["load","a"],["create","b"]],[["withdraw","x"],["put","c"]]]'
    s.app.run(helper, "done", goal=goal)
    s.h.kill("put", after="effect")
    try:
        s.app.run(helper, "killed", goal=goal)
    except Killed:
        pass


@scenario
def sessions(s: Stage) -> None:
    create, put = s.app.steps["create"], s.app.steps["put"]
    with s.app.session("acknowledged") as session:
        session.call(create, what="a", call_id="c1")
        session.call(put, what="b", call_id="c2")
    try:
        with s.app.session("crashed") as session:
            session.call(create, what="a", call_id="c1")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    try:
        with s.app.session("crashed") as session:
            session.call(put, what="other", call_id="c2")
    except Refused:
        pass
    with s.app.session("finished") as session:
        session.call(create, what="a", call_id="c1")
        session.finish({"said": "done"})


@scenario
def restored(s: Stage) -> None:
    from doubtless.store.projections import recovered

    s.app.start(s.work, "t", script=[["create", "a"]])
    s.app.store.add("$store", [recovered(s.app.store.now(), suspect=False, by="anna", why="golden")])


# ---------------------------------------------------------------- the files


def made(name: str, folder: Path) -> str:
    """One scenario's file: its log, its content, and what today's code makes of it."""
    world = World()
    app, work = build(world)
    (folder / "making").mkdir(parents=True)
    with harness(app, folder / "making") as h:
        SCENARIOS[name](Stage(app, work, world, h))
        now = datetime.fromtimestamp(h.clock.now().wall / 1e6, UTC).isoformat()
        all_rows, blobs = export(app)
        if unmet := {step: left for step, left in world.next.items() if left}:
            raise UsageError(f"scenario {name}: ordered, and never met: {unmet}")
    about = {"scenario": name, "format": FORMAT, "now": now, "world": world.effects}
    lines = [about, *({"row": written(row)} for rows in all_rows for row in rows)]
    lines += [{"digest": digest.hex(), "content": content.decode()} for digest, content in sorted(blobs.items())]
    expected = replayed(dump(lines), folder / "replayed")
    return dump([*lines, {"expected": expected}])


def main(into: Path) -> None:
    """Write all files of this release's format, and their digests."""
    folder = into / f"format-{FORMAT}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCENARIOS:
        with tempfile.TemporaryDirectory() as place:
            (folder / f"{name}.jsonl").write_text(made(name, Path(place)), encoding="utf-8")
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.glob("*.jsonl"))]
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
