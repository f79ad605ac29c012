"""Reconciliations as a web service: tasks are started by requests and run by a worker in the same process.

Read `app`. Its tasks are those of `examples.reconciliation`.
"""
