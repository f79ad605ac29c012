"""What a model is told of the steps: names, descriptions and the JSON Schema of their params; nothing of their policy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic
import pytest
from agents_ground import Releases, Script, World, call, turn
from typing_extensions import TypedDict

from doubtless import Finish, Secret, StepTableError, UnknownStep, UsageError, injected
from doubtless.declaring import OPTIONS


class Line(TypedDict):
    sku: str
    count: int


@dataclass
class Address:
    street: str
    city: str = "Bonn"


class Note(pydantic.BaseModel):
    text: str


def test_a_step_is_told_by_its_name_its_docstring_and_the_schema_of_its_params(release: Releases) -> None:
    app = release()
    assert app.tools(["pay"]) == [
        {
            "name": "pay",
            "description": "Pay an order.\n\nOnly when somebody has asked for it.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
                "required": ["order", "amount"],
                "additionalProperties": False,
            },
        }
    ]
    send = app.tools([app.steps["send"]])[0]["parameters"]
    assert (send["required"], send["properties"]["text"]) == (["to"], {"type": "string", "default": "hello"})


def test_no_option_of_a_step_no_key_and_no_secret_is_in_what_a_model_is_told(release: Releases) -> None:
    app = release()

    @app.step(
        effect="non_idem_write", query=lambda order: None, absent_after="PT1M", settle_within="PT2H", key_window=None, secret=("token",),
        volatile=("requested_at",), single_request=True, cost=3, timeout="PT7S",
    )  # fmt: skip
    def charge(order: str, requested_at: str, token: str, tenant: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return {"order": order}

    (tool,) = app.tools([charge], bind={"charge": {"tenant": "acme"}})
    assert set(tool) == {"name", "description", "parameters"}
    assert list(tool["parameters"]["properties"]) == ["order", "requested_at"], "what is volatile is the model's to word"
    assert not {*OPTIONS, "idempotency_key", "token", "tenant"} & {*tool["parameters"]["properties"]}
    assert not any(word in json.dumps(tool["parameters"]) for word in ("idem", "PT", "effect", "secret", "acme"))


def test_what_a_model_gives_comes_to_the_function_in_the_types_of_its_annotations(release: Releases) -> None:
    got: list[Any] = []
    app = release()

    @app.step(effect="non_idem_write")
    def order(
        lines: list[Line], to: Address, note: Note, price: Decimal, on: date, kind: Literal["a", "b"],
        count: Annotated[int, pydantic.Field(ge=1, description="How many.")] = 1,
    ) -> dict[str, Any]:  # fmt: skip
        got.append((lines, to, note, price, on, kind, count))
        return {"ok": True}

    params: dict[str, Any] = {
        "lines": [{"sku": "tea", "count": 2}], "to": {"street": "Weg 1"}, "note": {"text": "n"}, "price": "12.50", "on": "2026-11-28",
        "kind": "a",
    }  # fmt: skip
    wrong = [
        {**params, "lines": [{"sku": "tea"}]}, {**params, "lines": [{"sku": "tea", "count": "2"}]}, {**params, "kind": "c"},
        {**params, "on": "tomorrow"}, {**params, "count": 0}, {**params, "to": {}}, {**params, "price": "dear"}, {**params, "note": "n"},
    ]  # fmt: skip
    script = Script(turn(*(call("order", **one) for one in [params, *wrong])), Finish())
    app.run(app.agent("clerk", choose=script, steps=[order]), "t1", goal="")
    assert got == [
        ([{"sku": "tea", "count": 2}], Address("Weg 1", "Bonn"), Note(text="n"), Decimal("12.50"), date(2026, 11, 28), "a", 1)
    ]
    assert [fact["status"] for fact in script.states[1].facts] == ["done", *["refused"] * len(wrong)]
    texts = [fact["text"] for fact in script.states[1].facts[1:]]
    for text, place in zip(texts, ["lines.0.count", "lines.0.count", "kind", "on", "count", "to.street", "price", "note"], strict=True):
        assert f": {place}: " in text
    schema = script.states[0].tools[0]["parameters"]
    assert schema["properties"]["count"]["description"] == "How many."
    assert schema["$defs"].keys() == {"Line", "Address", "Note"}
    assert schema["properties"]["to"]["$ref"] == "#/$defs/Address"


def test_a_step_that_does_not_exist_or_whose_params_have_no_schema_is_refused(release: Releases) -> None:
    app = release()

    @app.step(effect="read")
    def odd(what: Any, where: Callable[..., Any]) -> str:
        return ""

    @app.step(effect="read")
    def good(what: Any, where=1) -> str:  # type: ignore[no-untyped-def]
        return ""

    assert app.tools([good])[0]["parameters"]["properties"] == {"what": {}, "where": {"default": 1}}

    with pytest.raises(UnknownStep, match="there is no step 'wire'"):
        app.tools(["wire"])
    with pytest.raises(UsageError, match="step odd: the annotation of 'where' has no JSON Schema"):
        app.tools([odd])
    Local = int

    @app.step(effect="read")
    def unknown(what: Local) -> str:
        return ""

    with pytest.raises(UsageError, match="step unknown: the annotation of 'what' cannot be resolved"):
        app.tools([unknown])
    app.agent("clerk", choose=Script(), steps=[odd])
    assert any("agent clerk: step odd: the annotation of 'where' has no JSON Schema" in fault for fault in app.check())
    with pytest.raises(UsageError, match="is no step"):
        app.tools([print])  # type: ignore[list-item]


def test_faults_of_an_agent_are_listed_with_those_of_the_table_all_of_them(release: Releases) -> None:
    app = release()

    @app.step(effect="read")
    async def later() -> int:
        return 1

    @app.step(effect="non_idem_write", secret=("token",))
    def charge(order: str, token: str) -> dict[str, Any]:
        return {}

    app.agent("clerk", choose=lambda: Finish(), steps=["wire", later, charge, charge], timeout="soon", attempts=0, cost=-1)  # type: ignore[misc,arg-type]
    app.agent("other", choose=Script(), steps=[charge], bind={"charge": {"token": "raw", "x": 1}, "pay": {}}, max_choices=0, max_cost=-1)
    app.agent("third", choose=Script(), steps=[], last_turns=51, concurrency=0, snapshot_every=0, last_bytes="1")  # type: ignore[arg-type]
    app.agent("third", choose=Script(), steps=[], on_failure="undo")  # type: ignore[arg-type]
    app.agent("$own", choose=Script(), steps=[])
    app.agent("a b", choose=Script(), steps=[])
    faults = "\n".join(app.check())
    for fault in [
        "agent clerk: timeout: 'soon' is not a duration", "agent clerk: attempts", "agent clerk: cost is -1",
        "agent clerk: choose has to take one thing by position, the state", "agent clerk: there is no step 'wire'",
        "agent clerk: step 'later' is async and choose is not", "agent clerk: step 'charge' stands twice",
        "agent clerk: step 'charge' needs the secret 'token', which no model may see", "agent other: bind names 'pay'",
        "agent other: bind gives step 'charge' 'x', which it does not take", "the secret 'token' as a raw value",
        "agent other: max_choices is 0", "agent other: max_cost is -1", "agent third: last_turns is 51: at most 50",
        "agent third: concurrency is 0", "agent third: snapshot_every is 0", "agent third: last_bytes is '1'",
        "task third: declared twice", "agent third: on_failure is 'undo'", "agent $own: names that begin with '$' are the library's own", "agent a b: the name may hold",
    ]:  # fmt: skip
        assert fault in faults, fault
    with pytest.raises(StepTableError):
        app.run(app.agent("last", choose=Script(), steps=[]), "t1", goal="")
    for wrong in ({"choose": None, "steps": []}, {"choose": print, "steps": 1}, {"choose": print, "steps": [], "bind": 3}):
        with pytest.raises(UsageError):
            app.agent("x", **wrong)
    with pytest.raises(UsageError):
        app.agent("", choose=Script(), steps=[])


def test_a_bound_secret_is_stored_as_its_reference(release: Releases, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGE_TOKEN", "t0ken-of-the-bank")
    app = release()

    @app.step(effect="non_idem_write", secret=("token",))
    def charge(order: str, token: str) -> dict[str, Any]:
        return world.do("charge", [order, token])

    script = Script(turn(call("charge", order="o1")), Finish())
    app.run(app.agent("clerk", choose=script, steps=[charge], bind={"charge": {"token": Secret("env:CHARGE_TOKEN")}}), "t1", goal="")
    assert world.done[0][1] == ["o1", "t0ken-of-the-bank"]
    assert app.facts("t1")[0].params == {"order": "o1", "token": {"$secret": "env:CHARGE_TOKEN"}}


def test_without_pydantic_an_agent_is_refused_with_what_to_install() -> None:
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pydantic":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pydantic" else real(name, package)
from doubtless import Doubtless, UsageError
app = Doubtless("sqlite:///x.db")
@app.step(effect="read")
def look() -> int: return 1
for deed in (lambda: app.agent("clerk", choose=lambda state: None, steps=[look]), lambda: app.tools([look])):
    try:
        deed()
    except UsageError as error:
        print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["pip install 'doubtless[agents]'"] * 2
