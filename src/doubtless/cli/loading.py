"""From what was typed to an app: MODULE:APP, a store's URL, a task's name and its params."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..app import Doubtless
from ..errors import UnknownTask, UsageError

if TYPE_CHECKING:
    from ..steps import Task
    from .group import Invocation

AS_IN = "write MODULE:APP, as in recon:app or path/to/recon.py:app"


# ---------------------------------------------------------------- a store, to look at


def url_said(called: Invocation, url: str | None) -> str:
    """The store's URL, from ``--store`` or the environment. Raises UsageError when neither says it."""
    called.url = url
    try:
        return Doubtless(url).url
    except UsageError:
        raise UsageError(
            "no store is given", hint="--store sqlite:///recon.db, or export DOUBTLESS_STORE=sqlite:///recon.db"
        ) from None


@contextmanager
def looking(called: Invocation, url: str | None, *, read_only: bool = True) -> Iterator[Doubtless]:
    """Open a store without the app's code. Nothing is created: a store that is not there is refused."""
    app = Doubtless(url_said(called, url), read_only=read_only, blobs=called.blobs)
    try:
        app.store.info()
        yield app
    finally:
        app.close()


@contextmanager
def changing(called: Invocation, url: str | None) -> Iterator[Doubtless]:
    """Open a store that is there, to write to it, without the app's code."""
    with looking(called, url):
        pass  # refuses a store that would have to be created
    with looking(called, url, read_only=False) as app:
        yield app


# ---------------------------------------------------------------- an app, to run


@contextmanager
def aside(wanted: bool) -> Iterator[None]:
    """Send what this process and its children print to stderr, so that stdout holds one document: of ``--json``."""
    if not wanted or sys.stdout is None:  # None: the command was started without a stdout
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def load_app(called: Invocation, target: str) -> Doubtless:
    """Import the app that MODULE:APP names, with the working directory on the module path.

    Raises: UsageError that says what is missing (the module, a module that it needs, the name in it) and what is near.
    """
    where, colon, name = target.rpartition(":")
    if not (colon and where and name):
        raise UsageError(f"{target} names no app", hint=AS_IN)
    is_file = where.endswith(".py") or os.sep in where
    with aside(called.as_json):  # what a module prints while it is imported is no part of the document
        module = _module_of_file(where) if is_file else _module(where, target)
    app = _attribute(module, name, target)
    called.target = target
    called.url = _to_be_said(app)
    return app


def _to_be_said(app: Doubtless) -> str | None:
    """The app's store, where the environment does not name the same one: commands to type have to name it then."""
    try:
        url = app.url
    except UsageError:
        return None  # refused when it is used, with what to do
    try:
        return None if url == Doubtless().url else url
    except UsageError:
        return url


def _module(name: str, target: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not (name == missing or name.startswith(f"{missing}.")):
            raise UsageError(
                f"cannot import {name}: it needs the module {missing}, which is not installed",
                hint=f"install it beside doubtless, for {sys.executable}",
            ) from error
        searched = f"looked in {os.getcwd()} and on the module path"
        raise UsageError(f"there is no module {missing} ({searched})", hint=_near(name)) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UsageError:
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    else:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        own = [frame for frame in frames if "importlib" not in frame[0]]
        place = f" ({own[-1][0]}, line {own[-1][1]})" if len(own) > 1 else ""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return UsageError(
        f"cannot import {name}: {type(error).__name__}: {said}{place}", hint="the same command with --debug shows the traceback"
    )


def _near(name: str) -> str:
    here = [p.stem for p in Path.cwd().glob("*.py")] + [p.parent.name for p in Path.cwd().glob("*/__init__.py")]
    near = get_close_matches(name.partition(".")[0], here, n=1)
    return f"did you mean {near[0]}?" if near else AS_IN


def _module_of_file(where: str) -> ModuleType:
    """Import a file by the name that it has where its packages begin, so that its own imports work."""
    path = Path(where).resolve()
    if path.suffix != ".py":
        path = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    if not path.is_file():
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1) if path.parent.is_dir() else []
        raise UsageError(f"there is no file {where}", hint=f"did you mean {near[0]}?" if near else AS_IN)
    parts = [] if path.stem == "__init__" else [path.stem]
    root = path.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(parts)
    module = _module(name, where)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        taken = f"that name is taken by {found or 'a built-in module'}"
        raise UsageError(f"{where} would be the module {name}, and {taken}", hint="rename the file")
    return module


def _attribute(module: ModuleType, name: str, target: str) -> Doubtless:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"{module.__name__} has no {name}", hint=_apps_of(module, name)) from None
    if not isinstance(found, Doubtless):
        raise UsageError(f"{target} is of type {type(found).__name__}, not a Doubtless app", hint=_apps_of(module, name))
    return found


def _apps_of(module: ModuleType, name: str) -> str:
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, Doubtless))
    if apps:
        return f"apps there: {', '.join(apps)}"
    near = get_close_matches(name, [key for key in vars(module) if not key.startswith("_")], n=1)
    return f"did you mean {near[0]}?" if near else f"{module.__name__} makes no Doubtless app at its top level"


def task_named(app: Doubtless, name: str) -> Task[..., Any]:
    """The declared task of this name. Raises UnknownTask with what is near."""
    task = app.declared_tasks.get(name)
    if task is None:
        raise UnknownTask(f"there is no task {name} in this app", hint=_one_of(name, app.declared_tasks))
    return task


def _one_of(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"declared are: {', '.join(sorted(known)) or 'none'}"


# ---------------------------------------------------------------- values


def read_json(text: str, where: str) -> Any:
    """JSON as it was typed, or from a file as ``@path``. Strict: a key written twice, NaN or a comment is refused."""
    from ..canonical import parse

    if not text.startswith("@"):
        return parse(text, where=where)
    try:
        content = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        named = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "no file can have this name"
        reason = error.strerror if isinstance(error, OSError) else named
        raise UsageError(f"{where}: cannot read {text[1:]}: {reason}") from error
    return parse(content, where=f"{where} {text}")


def read_params(task: Task[..., Any], pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """The params of a task from ``-p key=value`` and ``--params JSON|@file``, checked against its signature.

    Meaning: a value is JSON where it reads as JSON and fits the param's annotation, else the text itself: ``-p day=20261128``
    stays text for a `str`, ``-p amount=1.10`` an exact `Decimal`.
    Raises: UsageError for a key given twice, a param that is missing or unknown, a value that does not fit. Nothing is written.
    """
    params = read_json(whole, "--params") if whole is not None else {}
    if not isinstance(params, dict):
        raise UsageError("--params is JSON, but no object", hint="""--params '{"day": "2026-11-28"}'""")
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (equals and key):
            raise UsageError(f"-p {pair} names no param", hint="write -p key=value")
        if key in params:
            raise UsageError(f"the param {key} is given twice", hint="once, by -p or in --params")
        params[key] = _value(task, key, text)
    task.code.definition.binder.bind((), params)
    fault = _misfit(task, params)
    if fault:
        declared = f"it is declared as {task.name}{_signature(task)}"
        raise UsageError(f"task {task.name}: {fault}; nothing was written", hint=declared)
    return params


def _value(task: Task[..., Any], key: str, text: str) -> Any:
    from ..canonical import parse

    try:
        value = parse(text, where=f"-p {key}")
    except UsageError:
        return text
    return text if _misfit(task, {key: value}) and not _misfit(task, {key: text}) else value


def _misfit(task: Task[..., Any], params: dict[str, Any]) -> str:
    from copy import deepcopy

    from ..errors import DoubtlessError

    try:
        task.code.definition.restore_params(deepcopy(params))
    except DoubtlessError as error:
        return error.message
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _signature(task: Task[..., Any]) -> str:
    import inspect

    return str(inspect.signature(task.fn))
