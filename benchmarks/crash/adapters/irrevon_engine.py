"""irrevon on PostgreSQL: `adapters/base.py`, its packaged declarations, the engine as in `api/worker.py`; policy opted in."""

import time
from datetime import UTC, datetime

from irrevon.adapters.base import Adapter, DispatchResult, StatusAnswer, declarations_dir, load_declaration
from irrevon.api import Engine
from irrevon.ledger.db import apply_migrations
from irrevon.resolution import ReconcileConfig, ResolutionConfig

SAYS = {"StorageUnavailable": "busy"}
FRESH = {"fresh_authority_ref": "b", "stamped_at": datetime.now(UTC).isoformat()[:-6] + "Z"}
INTENT = {"schema_version": "1", "effect_type": "order.pay", "effect_class": "IRREVERSIBLE", "scope": "bench",
          "adapter_id": "gateway", "authority_ref": "a", "stamped_at": FRESH["stamped_at"]}  # fmt: skip


def run(world):
    class Gateway(Adapter):
        adapter_id, list_effects = "gateway", lambda *window: []

        def declare(self):
            tier = "c2" if world.look else "c1" if world.keys else "c3"
            declared = load_declaration(declarations_dir() / f"refdest-{tier}.capability.json")
            lag = {"consistency": {"status_settlement_lag": f"PT{int(world.lag) + 1}S", "listing_lag": None}}
            window = {"idempotency": {**declared["idempotency"], "window": f"PT{int(world.window or 0)}S"}}
            return declared | (lag if world.look else window if world.keys else {})

        def dispatch(self, order, deadline_s):
            try:
                return DispatchResult("OK", destination_ref=str(world.pay(order.client_ref)["id"]))
            except TimeoutError:
                return DispatchResult("TIMEOUT")

        def status_query(self, *, client_ref=None, destination_ref=None, deadline_s=10.0):
            return StatusAnswer("PRESENT", 1, (str(found["id"]),)) if (found := world.find()) else StatusAnswer("ABSENT", 0)

    apply_migrations(dsn := world.own_database())
    config = ReconcileConfig(stuck_threshold_s=world.lease, absence_reread_gap_s=1.0)
    policy = ResolutionConfig(auto_redispatch_effect_types=frozenset({"order.pay"}), reconcile=config)
    engine = Engine(dsn, {"gateway": Gateway()}, reconcile_config=config, resolution_config=policy)
    engine.boot()
    order = {"stable_ids": {"order": world.task}, "parameters": {"reference": world.task}}
    engine.dispatch(effect := engine.register_intent(INTENT | order).effect_id)
    while (state := engine.status(effect))["record"]["lifecycle"] == "AMBIGUOUS" and world.look:
        time.sleep(0.5)
        engine.reconcile(effect)  # as its worker does
    if state["record"]["lifecycle"] == "SETTLED_FAILED":  # proven absent
        engine.resolve(state["findings"][-1]["finding_id"], "REDISPATCHED", FRESH, actor="policy_auto")
    return world.after() if engine.status(effect)["record"]["lifecycle"] == "SETTLED_COMMITTED" else "asks"
