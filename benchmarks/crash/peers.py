"""Who stands in the matrix: the adapter, the pins, and what is to be known about each."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A row of the matrix. `reason`: why it cannot be run, whatever the machine."""

    name: str
    package: str
    adapter: str
    requirements: str
    look_back: bool = False
    python: tuple[int, int] = (3, 11)
    postgres: bool = False
    schema: bool = False
    """Its schema is not in the package: whoever runs the bench has put it into that database."""
    one_by_one: bool = False
    """Its cells are never played at the same time: its migrations touch the whole PostgreSQL server."""
    note: str = ""
    reason: str = ""


DOUBTLESS = Entry("Doubtless", "doubtless", "doubtless_step.py", "", look_back=True,
                  note="This source tree. The step declares what is true of the gateway: a look-back with `absent_after` one "
                       "second above its documented lag, or `key_window`; without either nothing.")  # fmt: skip

ENTRIES = [
    DOUBTLESS,
    Entry("DBOS", "dbos", "dbos_workflow.py", "dbos.txt",
          note="On SQLite. Its steps have no look-back. Step retries are off, as by default."),
    Entry("LangGraph functional", "langgraph", "langgraph_functional.py", "langgraph.txt",
          note="`durability=\"sync\"`, its strictest mode. No look-back; no retry policy, as by default. "
               "The library alone, without its server."),
    Entry("LangGraph ToolNode", "langgraph", "langgraph_toolnode.py", "langgraph.txt",
          note="`durability=\"sync\"`. The model is played by a function. The library alone, without its server."),
    Entry("pydantic-ai on DBOS", "pydantic-ai-slim", "pydantic_ai_dbos.py", "pydantic-ai.txt",
          note="`DBOSDurability`, on SQLite. The model is played by its `FunctionModel`."),
    Entry("agent-once", "agent-once", "agent_once.py", "agent-once.txt", look_back=True,
          note="`stale_after` is the bench's lease in every cell; the look-back is its `verify`. A record that stays pending is "
               "ended by its `reset(key)`."),
    Entry("exactly_once", "exactly-once", "exactly_once_guard.py", "exactly_once.txt", look_back=True,
          note="The package of that name on PyPI (with a hyphen). The look-back is its `check_then_decide` with a lease; without "
               "one its default, quarantine."),
    Entry("agent-runtime-governance", "agent-runtime-governance", "governed_tool.py", "agent-runtime-governance.txt",
          note="With `SQLiteIdempotencyStore`. Its reconciliation of unknown outcomes (a provider under a sealed action "
               "contract, called by an operator) is not part of this adapter."),
    Entry("airlock-sdk", "airlock-sdk", "airlock_guard.py", "airlock-sdk.txt", look_back=True,
          note="`reconcile_after` is the bench's lease, `execute_timeout` half a second less; the look-back is "
               "`Effect(verify=…)`; `on_absent` is its default."),
    Entry("gravtory", "gravtory", "gravtory_workflow.py", "gravtory.txt", note="On SQLite. No look-back."),
    Entry("durastep", "durastep", "durastep_run.py", "durastep.txt",
          note="No look-back. Its README says that two workers must not share a run id (E, I, J)."),
    Entry("replyonce", "replyonce", "replyonce_once.py", "replyonce.txt", look_back=True, postgres=True,
          note="On PostgreSQL (its durable stores are PostgreSQL and Redis). `pending_ttl_ms` is the bench's lease; the "
               "look-back is its `reconcile`."),
    Entry("irrevon", "irrevon", "irrevon_engine.py", "irrevon.txt",
          look_back=True, python=(3, 13), postgres=True, one_by_one=True,
          note="On PostgreSQL, a database a cell. The look-back is its `status_query`, with a `status_settlement_lag` "
               "one second above the gateway's documented lag; redispatch after a proven absence is opted into. K: the window "
               "is in its declaration."),
    Entry("absurd", "absurd-sdk", "absurd_task.py", "absurd.txt", postgres=True, schema=True,
          note="On PostgreSQL. `claim_timeout` is the bench's lease. No look-back."),
]  # fmt: skip
