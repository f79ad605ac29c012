"""LangGraph's functional API, `durability="sync"`, with its SQLite or PostgreSQL checkpointer; the library alone, without its
server. Many at once: a thread each; on PostgreSQL with a pool of connections, as its docs show."""

import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor

from langgraph.func import entrypoint, task


def saver_of(url):
    if url.startswith("sqlite:///"):
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False))
    else:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        pool = ConnectionPool(url, max_size=20, kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row})
        saver = PostgresSaver(pool)
    saver.setup()
    return saver


class Peer:
    def __init__(self, saver):
        @task
        def create_adjustment(difference: dict, amount: int, note: str) -> dict:
            return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}

        @entrypoint(checkpointer=saver)
        def reconcile(given: dict) -> None:
            for n in range(given["steps"]):
                create_adjustment({"order": "A-17", "kind": "missing"}, n, given["note"]).result()

        self.reconcile = reconcile

    def one(self, steps, size=0):
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 100_000}
        self.reconcile.invoke({"steps": steps, "note": "x" * size}, config, durability="sync")

    def beside(self, tasks, steps):
        with ThreadPoolExecutor(tasks) as pool:
            list(pool.map(self.one, [steps] * tasks))


def begin(spec):
    return Peer(saver_of(spec["url"]))
