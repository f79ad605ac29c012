"""Commands that tidy up: gc."""

from __future__ import annotations

import click

from .exits import OK
from .group import Invocation, common, store_option
from .loading import changing, looking
from .reporting import emit, note, say


@click.command(short_help="Delete large content that nothing in the log names.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--older-than", default="P1D", metavar="DURATION", help="Younger content may have its event under way. Default: P1D."
)
@store_option
@common
@click.pass_obj
def gc(called: Invocation, *, dry_run: bool, older_than: str, url: str | None) -> int:
    """Delete content above 1 MiB that no event, snapshot or spilled result names and that is older than the longest writer.

    It lies in the folder beside the database, and in the object store if there is one. What a crash left between content and its
    event is litter; nothing that the log names is ever touched.

    JSON: {"dry_run", "places": [{"place", "stored", "bytes_stored", "found", "bytes_found", "removed", "digests"}]}.
    """
    with looking(called, url) if dry_run else changing(called, url) as app:
        places = app.gc(older_than=older_than, dry_run=dry_run)
    if called.as_json:
        emit(
            {
                "dry_run": dry_run,
                "places": [
                    {
                        "place": one.place, "stored": one.stored, "bytes_stored": one.bytes_stored, "found": len(one.found),
                        "bytes_found": one.bytes_found, "removed": one.removed,
                        "digests": [f"sha256:{litter.digest.hex()}" for litter in one.found],
                    }
                    for one in places
                ],
            }
        )  # fmt: skip
        return OK
    for one in places:
        what = f"{len(one.found)} ({one.bytes_found} bytes) named by nothing and older than {older_than}"
        say(f"{one.place}: {one.stored} contents ({one.bytes_stored} bytes), {what}; {one.removed} deleted")
    if dry_run and any(one.found for one in places):
        note("nothing was deleted; the same command without --dry-run deletes them")
    return OK
