"""The storm: worker processes, PostgreSQL and its connections are killed, stopped and cut, and the effects are counted outside."""
