"""``synrepl probe``: how long each process of a homeserver takes to show what was written."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import Output, duration_option, output_option
from synrepl.cli.progress import Advance
from synrepl.cli.tables import table
from synrepl.errors import ReplicationError
from synrepl.http_api.route import public_url
from synrepl.http_client import read_secret
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.homeserver.probe import Delay

EXIT_CODES: Final = (
    "Exit codes: 0 all processes were fresh in time; 1 one was late, or the probe failed; 2 wrong usage."
)


@click.command(cls=CliCommand, epilog=EXIT_CODES)
@click.argument("url")
@click.option(
    "--via",
    multiple=True,
    metavar="NAME=URL",
    help="A process to read through, by its own address; may be repeated. [default: URL itself]",
)
@click.option(
    "--token-file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the access token of a user of the probe's own.",
)
@click.option("--rounds", type=click.IntRange(1, 10_000), default=10, help="How often to write and read.")
@duration_option("--late", default="5s", help="A process that takes longer is late.")
@duration_option("--timeout", default="30s", help="How long to wait in a round for a process.")
@output_option(
    '{"late": [...], "unanswered": {process: why}, "delays": [{"process", "stream", "p50", "p99", "missed"}]}'
)
def probe(
    url: str,
    via: tuple[str, ...],
    token_file: Path,
    rounds: int,
    late: float,
    timeout: float,
    output: Output,
) -> None:
    """Measure how long each process of a homeserver takes to show what a user writes.

    It writes through URL (the address that clients use): account data, a to-device message to its own device,
    an event and a receipt, in a private room that it makes and leaves; then it reads them with /sync through
    each --via. At most one round a second.
    """
    token = read_secret(token_file, "the token file")
    readers = _readers(via) or {"the homeserver": url}
    for one in (url, *readers.values()):
        if not one.startswith(("http://", "https://")):
            raise click.UsageError(f"{public_url(one)} is not an HTTP URL")
    # Imported on use: the first installs the reactor, the other takes most of the start time.
    from twisted.internet import reactor

    from synrepl.cli.output import quiet
    from synrepl.cli.reactor import run_reactor
    from synrepl.homeserver.probe import HomeserverClient, Probe

    quiet()

    def client(url: str) -> HomeserverClient:
        return HomeserverClient(reactor, url, token, patience=timeout)

    clients = {name: client(one) for name, one in readers.items()}
    with Advance("probing (it writes as this user)", rounds) as advance:
        work = Probe(
            reactor,
            client(url),
            clients,
            patience=timeout,
            told=lambda number, delays: advance.step(1, len(delays)),
        )
        try:
            delays: list[Delay] = run_reactor(reactor, lambda: work.run(rounds))
        except ReplicationError as error:
            raise CliError(str(error)) from error
    for what in work.leftovers:
        click.echo(f"not cleaned up: {what}", err=True)
    rows = _rows(delays)
    late_ones = [row for row in rows if row["missed"] or row["p99"] > late]
    output.show(
        {"late": late_ones, "unanswered": work.unanswered, "delays": rows},
        _lines(rows, late_ones, rounds, work.unanswered),
    )
    if late_ones:
        sys.exit(1)


def _readers(via: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in via:
        name, equals, where = one.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--via must be NAME=URL, not {public_url(one)}")
        if name in found:
            raise click.UsageError(f"--via names {name} twice")
        found[name] = where
    return found


def _rows(delays: "Sequence[Delay]") -> list[dict[str, Any]]:
    seconds: dict[tuple[str, str], list[float | None]] = {}
    for one in delays:
        seconds.setdefault((one.process, one.stream), []).append(one.seconds)
    rows = []
    for (process, stream), found in seconds.items():
        known = sorted(one for one in found if one is not None)
        rows.append(
            {
                "process": process,
                "stream": stream,
                "p50": round(_quantile(known, 0.5), 3),
                "p99": round(_quantile(known, 0.99), 3),
                "missed": len(found) - len(known),
            }
        )
    return rows


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share lies; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _lines(
    rows: Sequence[Mapping[str, Any]],
    late: Sequence[Mapping[str, Any]],
    rounds: int,
    unanswered: Mapping[str, str],
) -> Iterator[str]:
    for name, why in unanswered.items():
        yield click.style(f"{printable(name)} does not answer: {why}", "red")
    for row in late:
        if row["process"] in unanswered:
            continue
        what = f"missed {row['missed']} of {rounds} rounds" if row["missed"] else f"took {row['p99']:.1f} s"
        yield click.style(f"{printable(row['process'])} is late: {row['stream']} {what}", "red")
    yield from table(
        ("process", "stream", "p50, ms", "p99, ms", "missed"),
        [
            (
                printable(row["process"]),
                row["stream"],
                round(row["p50"] * 1000),
                round(row["p99"] * 1000),
                row["missed"],
            )
            for row in rows
        ],
        limit=len(rows),
    )
    if not late:
        yield click.style("all processes were fresh in time", "green")
