"""The parts of the PostgreSQL store."""
