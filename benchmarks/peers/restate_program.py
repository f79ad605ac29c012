"""Restate: its server from npm on free ports, its data in the folder; a service whose handler runs the steps as `ctx.run`,
called through the ingress. Many at once: so many requests."""

import asyncio
import glob
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

reconciliation = restate.Service("Reconciliation")


@reconciliation.handler("reconcile")
async def reconcile(ctx: restate.Context, given: dict) -> None:
    for n in range(given["steps"]):
        await ctx.run_typed("create_adjustment", create_adjustment, amount=n, note=given["note"])


def create_adjustment(amount: int, note: str) -> dict:
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}


class Peer:
    def __init__(self, folder, name):
        ports = [free_port() for _ in range(4)]
        self.ingress, self.admin = (f"http://127.0.0.1:{port}" for port in ports[:2])
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ports[0]}", "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{ports[1]}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{ports[2]}", "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{ports[2]}",
            "RESTATE_LISTEN_MODE": "tcp", "DO_NOT_TRACK": "1", "RESTATE_CLUSTER_NAME": name,
        }  # fmt: skip
        found = sorted(glob.glob(os.path.join(sys.prefix, "npm", "node_modules", "@restatedev", "*", "bin", "restate-server")))
        if not found:
            raise FileNotFoundError("no restate-server from npm")
        command = [found[0], "--no-logo", "--base-dir", os.path.join(folder, "restate-data"), "--node-name", "n1"]
        with open(os.path.join(folder, "restate.log"), "wb") as log:
            self.server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        threading.Thread(target=end_with_us, args=(self.server.pid,), daemon=True).start()
        threading.Thread(target=serve_here, args=(ports[3],), daemon=True).start()
        until(lambda: urllib.request.urlopen(f"{self.ingress}/restate/health", timeout=5).close(), self.server)
        until(lambda: self.ask(f"{self.admin}/deployments", {"uri": f"http://127.0.0.1:{ports[3]}"}), self.server)
        until(lambda: self.one(1), self.server)

    def ask(self, url, body):
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()

    def one(self, steps, size=0):
        self.ask(f"{self.ingress}/Reconciliation/reconcile", {"steps": steps, "note": "x" * size})

    def beside(self, tasks, steps):
        with ThreadPoolExecutor(tasks) as pool:
            list(pool.map(self.one, [steps] * tasks))

    def end(self):
        self.server.kill()


def serve_here(port):
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"

    async def forever():
        await serve(restate.app([reconciliation]), config, shutdown_trigger=asyncio.Event().wait)

    asyncio.run(forever())


def end_with_us(pid):
    """Nothing is left behind when this process is killed: a shell that notices it ends the server."""
    watch = ["sh", "-c", f"cat >/dev/null; kill -9 {pid}"]
    subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True).wait()


def until(ready, server):
    deadline = time.monotonic() + 60
    while True:
        try:
            ready()
            return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"restate-server did not get ready: {error}") from error
            time.sleep(0.1)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def begin(spec):
    return Peer(spec["folder"], spec["name"])
