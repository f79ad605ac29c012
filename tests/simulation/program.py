"""The program of a scenario: an app as each of its processes declares it, and the task's code."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

from doubtless import Abort, Denied, Doubtless, Expired, StepFailed, Task, injected

from .kernel import Kernel
from .scenario import ABSENT_AFTER, KEY_WINDOW, SLOWER, TIMEOUT, Ask, Child, Node, Read, Scenario, Sleep, Together, Write
from .world import World, here

TASK = "t"


class Program:
    """What is the same in every process of a run: the scenario, the world, and whether its fault was mended."""

    def __init__(self, scenario: Scenario, world: World, kernel: Kernel) -> None:
        self.scenario = scenario
        self.world = world
        self.kernel = kernel
        self.fixed = scenario.ends != "code_error"
        self.release = 0
        self.declared = 0
        self.deploys = any(fault.what == "deploy" for fault in scenario.faults)
        self.undone: set[str] = set()  # the steps that have a compensation

    # ------------------------------------------------------------ calling, sync and async

    def sync(self, talk: Generator[float, None, Any]) -> Any:
        try:
            while True:
                self.kernel.doze(max(next(talk), 0.001))
        except StopIteration as end:
            return end.value
        finally:
            talk.close()

    async def later(self, talk: Generator[float, None, Any]) -> Any:
        try:
            while True:
                await asyncio.sleep(max(next(talk), 0.001))
        except StopIteration as end:
            return end.value
        finally:
            talk.close()

    # ------------------------------------------------------------ the steps

    def declare(self, app: Doubtless, release: int = 0) -> Task[..., Any]:
        """Declare steps and tasks, as this release has them; the task to run."""
        self.declared = release
        steps: dict[int, Any] = {}
        children: dict[int, Any] = {}
        number = 0
        for node in every(self.scenario.nodes):
            number += 1
            if isinstance(node, Write):
                steps[id(node)] = self._write(app, node, f"w{number}")
            elif isinstance(node, Read):
                steps[id(node)] = self._read(app, node, f"r{number}")
            elif isinstance(node, Child):
                children[id(node)] = self._child(app, node, f"child{number}", steps)
        run = Code(self, app, steps, children)
        if self.scenario.is_async:

            @app.task(name=TASK, on_failure=self.scenario.on_failure)  # type: ignore[call-overload,untyped-decorator]
            async def atask() -> Any:
                return await run.afollow(self.scenario.nodes, self.scenario.ends)

            return atask  # type: ignore[no-any-return]

        @app.task(name=TASK, on_failure=self.scenario.on_failure)  # type: ignore[call-overload,untyped-decorator]
        def task() -> Any:
            return run.follow(self.scenario.nodes, self.scenario.ends)

        return task  # type: ignore[no-any-return]

    def _child(self, app: Doubtless, child: Child, name: str, steps: dict[int, Any]) -> Task[..., Any]:
        run = Code(self, app, steps, {})
        if self.scenario.is_async:

            @app.task(name=name)
            async def achild() -> Any:
                return await run.afollow(child.nodes, "done")

            return achild

        @app.task(name=name)
        def sub() -> Any:
            return run.follow(child.nodes, "done")

        return sub

    def _options(self, write: Write) -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": TIMEOUT, "retry_rejected": write.retry_rejected}
        options["effect"] = "idem_write" if write.kind in ("key", "window") else "non_idem_write"
        new = self.declared > 0  # the other side is quicker by then, and remembers keys for ever; and somebody drops a query
        if write.kind in ("absent", "window") or (write.kind == "query" and not new):
            options["query"] = self._query(write)
        if write.kind in ("absent", "window"):
            longer = SLOWER if self.deploys and not new else 1.0
            options |= {"absent_after": ABSENT_AFTER * longer, "on_absent": write.on_absent}
        if write.kind == "window" and not new:
            options["key_window"] = KEY_WINDOW
        return options

    def _query(self, write: Write) -> Any:
        world = self.world
        if self.scenario.is_async and not write.plain:

            async def afind() -> Any:
                return await self.later(world.look(write))

            return afind

        def find() -> Any:
            return self.sync(world.look(write))

        return find

    def _write(self, app: Doubtless, write: Write, name: str) -> Any:
        world, options = self.world, self._options(write)
        if write.undo is not None:
            options["compensate"] = f"undo_{name}"
            if write.undo_within:
                options["compensate_deadline"] = write.undo_within
            self._undo(app, write.undo, f"undo_{name}")
            self.undone.add(name)
        if write.kind == "once":
            options["once"] = "the one:{tag}"

        if self.scenario.is_async and not write.plain:

            async def awrite(tag: str, idempotency_key: str = injected()) -> dict[str, Any]:
                found: dict[str, Any] = await self.later(world.talk(write, name, idempotency_key, None))
                return found

            return app.step(name=name, **options)(awrite)

        def fn(tag: str, idempotency_key: str = injected()) -> dict[str, Any]:
            found: dict[str, Any] = self.sync(world.talk(write, name, idempotency_key, None))
            return found

        return app.step(name=name, **options)(fn)

    def _undo(self, app: Doubtless, write: Write, name: str) -> None:
        world, options = self.world, self._options(write)
        if self.scenario.is_async and not write.plain:

            async def aundo(tag: str, result: dict[str, Any], idempotency_key: str = injected()) -> dict[str, Any]:
                world.refuse_undone(result, here())
                found: dict[str, Any] = await self.later(world.talk(write, name, idempotency_key, result))
                return found

            app.step(name=name, **options)(aundo)
            return

        def undo(tag: str, result: dict[str, Any], idempotency_key: str = injected()) -> dict[str, Any]:
            world.refuse_undone(result, here())
            found: dict[str, Any] = self.sync(world.talk(write, name, idempotency_key, result))
            return found

        app.step(name=name, **options)(undo)

    def _read(self, app: Doubtless, read: Read, name: str) -> Any:
        world = self.world
        if self.scenario.is_async:

            async def aread() -> Any:
                return await self.later(world.read(read.calls))

            return app.step(name=name, effect="read", timeout=TIMEOUT)(aread)

        def fn() -> Any:
            return self.sync(world.read(read.calls))

        return app.step(name=name, effect="read", timeout=TIMEOUT)(fn)


class Code:
    """The code of one task: it goes through its nodes."""

    def __init__(self, program: Program, app: Doubtless, steps: dict[int, Any], children: dict[int, Any]) -> None:
        self.program, self.app, self.steps, self.children = program, app, steps, children

    def follow(self, nodes: tuple[Node, ...], ends: str) -> Any:
        out = [self.one(node) for node in nodes]
        self.end(ends)
        return out

    def one(self, node: Node) -> Any:
        app = self.app
        if isinstance(node, Write):
            try:
                return self.steps[id(node)](tag="x")["of"]
            except StepFailed as failed:
                if node.caught:
                    return failed.kind
                raise
        if isinstance(node, Read):
            try:
                return self.steps[id(node)]()
            except StepFailed as failed:
                return failed.kind
        if isinstance(node, Sleep):
            app.sleep(node.seconds)
            return None
        if isinstance(node, Ask):
            try:
                return app.wait_for("news", **asked(node))
            except (Denied, Expired) as no:
                return type(no).__name__
        if isinstance(node, Together):
            if node.limit:
                return app.map(lambda branch: [self.one(n) for n in branch], node.branches, concurrency=node.limit)
            return app.parallel(*((lambda branch=branch: [self.one(n) for n in branch]) for branch in node.branches))
        return self.children[id(node)]()

    async def afollow(self, nodes: tuple[Node, ...], ends: str) -> Any:
        out = [await self.aone(node) for node in nodes]
        self.end(ends)
        return out

    async def aone(self, node: Node) -> Any:
        app = self.app
        if isinstance(node, Write):
            try:
                made = self.steps[id(node)](tag="x")
                return (made if node.plain else await made)["of"]
            except StepFailed as failed:
                if node.caught:
                    return failed.kind
                raise
        if isinstance(node, Read):
            try:
                return await self.steps[id(node)]()
            except StepFailed as failed:
                return failed.kind
        if isinstance(node, Sleep):
            await app.sleep(node.seconds)
            return None
        if isinstance(node, Ask):
            try:
                return await app.wait_for("news", **asked(node))
            except (Denied, Expired) as no:
                return type(no).__name__
        if isinstance(node, Together):
            if node.limit:
                return await app.map(self.abranch, node.branches, concurrency=node.limit)
            return await app.parallel(*((lambda branch=branch: self.abranch(branch)) for branch in node.branches))
        return await self.children[id(node)]()

    async def abranch(self, branch: tuple[Node, ...]) -> Any:
        return [await self.aone(node) for node in branch]

    def end(self, ends: str) -> None:
        if ends == "abort":
            raise Abort("it was not worth it")
        if not self.program.fixed:
            raise KeyError("a fault of the task's code")


def asked(ask: Ask) -> dict[str, Any]:
    return {"deadline": ask.deadline} if ask.deadline else {}


def every(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, in its place."""
    for node in nodes:
        yield node
        if isinstance(node, Together):
            for branch in node.branches:
                yield from every(branch)
        elif isinstance(node, Child):
            yield from every(node.nodes)
