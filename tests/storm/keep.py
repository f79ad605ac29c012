"""What is left of a storm in its folder: its story, its plan, the whole log as text, the books and what every process said."""

from __future__ import annotations

import json
from contextlib import suppress

from doubtless.errors import DoubtlessError

from .storm import Storm


def keep(storm: Storm) -> None:
    """Write the story and the log into the folder; the processes' own words and the other side's database are there already."""
    (storm.folder / "plan.txt").write_text("".join(f"{one.at:8.2f}  {one.who}  {one.line()}\n" for one in storm.plan))
    (storm.folder / "story.txt").write_text("\n".join(storm.story) + "\n")
    with suppress(DoubtlessError), (storm.folder / "log.jsonl").open("w") as file:
        for head in storm.desk.tasks():
            file.write(json.dumps({"head": head._asdict()}, default=repr) + "\n")
            for row in storm.desk.store.rows(head.task_id):
                file.write(json.dumps(row._asdict(), default=lambda value: value.hex() if isinstance(value, bytes) else repr(value)) + "\n")
