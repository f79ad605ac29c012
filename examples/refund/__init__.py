"""Refund the lines of an order, durably: an agent's work with a payment gateway.

Read in this order: `app` (the step table and the task), `client` (one request per call), `run` (every trouble as
a scene, counted at the gateway), `gateway` and `ledger` (the other side, as a process of its own), `agent` (a model
chooses the steps) and `model` (a real one).
"""
