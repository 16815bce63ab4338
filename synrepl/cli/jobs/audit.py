"""``pipeline audit``: check an archive for missing and changed rows."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from synrepl.cli.errors import EXIT_CODES, read_secret, secret_option
from synrepl.cli.jobs.common import (
    archive_option,
    maybe_url_option,
    show_progress,
    spark_options,
    spark_session,
)
from synrepl.html.humanize import counted

__all__ = ["audit_command"]


@click.command("audit", epilog=EXIT_CODES)
@archive_option
@maybe_url_option
@click.option("--deep", is_flag=True, help="Compute every digest again, also of files without a finding.")
@secret_option
@spark_options
def audit_command(
    location: str,
    url: str | None,
    deep: bool,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Check that the archive is complete and, with --url, that the daemon has the same facts.

    Reports missing, duplicate and changed rows by stream, writer, tokens and file. Exit code 1: there are
    findings.
    """
    with spark_session("audit", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.audit.audit import audit
        from synrepl.pipeline.store import Store

        done = audit(
            session,
            Store(location),
            url=url,
            secret=read_secret(secret_file),
            deep=deep,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done) | {"is_clean": done.is_clean}))
    else:
        for line in _result_lines(done):
            click.echo(line)
    if not done.is_clean:
        sys.exit(1)


def _result_lines(done: Any) -> Iterator[str]:
    for finding in done.findings:
        of = " ".join(filter(None, (finding.stream, finding.writer)))
        tokens = (
            "" if finding.first_token is None else f" tokens {finding.first_token} to {finding.last_token}"
        )
        yield f"{finding.what}: {of}{tokens}{': ' if of or tokens else ''}{finding.sentence}"
    if done.omitted:
        yield f"and {done.omitted} more"
    looked = (
        f"{done.facts:,} facts, {done.rows:,} rows, {done.bytes / 1e6:,.1f} MB in"
        f" {counted(done.files, 'file')} of {counted(done.batches, 'batch', 'batches')},"
        f" serials {done.first_serial} to {done.last_serial}"
    )
    yield f"{'clean' if done.is_clean else 'NOT CLEAN'}: {looked}; {sum(done.seconds.values()):.1f} s"
