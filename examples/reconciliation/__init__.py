"""Reconcile a bank statement with an order ledger, durably: the example that is Doubtless's main job.

Read in this order: `app` (the step table and the task), `client` (one request per call), `match` (what a
difference is), `load` (files in, or every bad row by name), `generate` (files as a finance team has them),
`server` and `books` (the other side, as a process of its own; `serving`, `counting` and `faults` are what it shares with other
examples), `demo` (all of it, with accidents), `agent` (a model chooses the steps).
"""
