"""Several processes on one store, each with a task of its own, beside as many that write the floor, and the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ground import DIFFERENCE, SHOWN, Ground, create_adjustment
from measuring import seconds, take_turns, us
from one_task import said_of
from others import Peer, Unavailable
from sections import table

COUNTS = (1, 2, 4)


def measured(ground: Ground) -> str:
    """Write steps a second of all processes together."""
    steps = 50 if ground.quick else 200
    parts = []
    for store in ground.stores:
        rows = [_several(ground, store, count, steps) for count in COUNTS]
        names = ground.others.names(store)
        head = ["processes", "Doubtless", "floor", "as fast as the floor", *names, ""]
        parts.append(f"**{SHOWN[store]}**, write steps a second of all together:\n\n" + table(head, [[*row, ""] for row in rows]))
    return "\n\n".join(parts) + f"\n\n{said_of(ground)}"


def _several(ground: Ground, store: str, count: int, steps: int) -> list[str]:
    url, plain = ground.url(store), ""
    if store == "sqlite":
        where = {"path": f"{ground.fresh('floor')}/log.db"}
    else:
        assert ground.cluster is not None
        where, plain = {"conninfo": ground.cluster.plain, "table": f"floor_{count}_processes"}, "postgres"
    hands = [Hand({"url": url, "floor": where, "kind": plain or "sqlite", "name": f"p{n}"}) for n in range(count)]
    try:
        works = {
            "ours": lambda: together(hands, {"work": "ours", "steps": steps}),
            "floor": lambda: together(hands, {"work": "floor", "steps": steps}),
        }
        turns = take_turns(works, 2 if ground.quick else 7)
    finally:
        for hand in hands:
            hand.end()
    speed = [count * steps / turns.median(name) for name in ("ours", "floor")]
    row = [f"{count}", us(speed[0]), us(speed[1]), f"{turns.ratio('floor', 'ours'):.0%}"]
    for name in ground.others.names(store):
        row.append(_peers(ground, store, name, count, steps))
    return row


def _peers(ground: Ground, store: str, name: str, count: int, steps: int) -> str:
    with ground.others.guarded(f"{name}, {count} processes", store):
        with ground.others.several(name, store, count) as peers:
            taken = min(_turn(peers, steps) for _ in range(3))
            return us(count * steps / taken)
    return "not measured"


def _turn(peers: Sequence[Peer], steps: int) -> float:
    def work() -> None:
        for peer in peers:
            peer.send("one", steps=steps, size=0)
        for peer in peers:
            peer.taken()

    return seconds(work)


class Hand:
    """A process that writes: the product's task, or the floor's."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.answer()

    def ask(self, asked: dict[str, Any]) -> None:
        """Have it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")

    def answer(self) -> None:
        """Wait for its word. Raises Unavailable: it has ended."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "done":
            raise Unavailable("a process of the benchmark has ended")

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def together(hands: Sequence[Hand], asked: dict[str, Any]) -> float:
    """The seconds that all of them need."""

    def work() -> None:
        for hand in hands:
            hand.ask(asked)
        for hand in hands:
            hand.answer()

    return seconds(work)


def main() -> None:
    """One of the processes."""
    from doubtless import Doubtless
    from floor import Floor
    from postgres_floor import PostgresFloor

    spec = json.loads(sys.argv[1])
    app = Doubtless(spec["url"])
    step = app.step(effect="non_idem_write")(create_adjustment)
    floor = Floor(**spec["floor"]) if spec["kind"] == "sqlite" else PostgresFloor(**spec["floor"])

    @app.task
    def many(steps: int) -> None:
        for i in range(steps):
            step(difference=DIFFERENCE, amount=i)

    print("done", flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        task = f"{spec['name']}-{number}"
        if asked["work"] == "ours":
            app.run(many, task, steps=asked["steps"])
        else:
            for i in range(asked["steps"]):
                floor.write(task, i, "create_adjustment", create_adjustment, difference=DIFFERENCE, amount=i)
        print("done", flush=True)


if __name__ == "__main__":
    main()
