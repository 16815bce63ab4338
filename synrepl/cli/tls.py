"""``synrepl tls``: certificates for daemons and clients, from a private CA."""

import time
from pathlib import Path

import click

from synrepl.cli.command import CliCommand, CliGroup
from synrepl.cli.options import Output, output_option


@click.group(cls=CliGroup)
def tls() -> None:
    """Make certificates for daemons, replicas and commands."""


@tls.command(cls=CliCommand)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A name or IP address by which daemons are reached; may be repeated. [default: those of the"
    " certificate there is; localhost is always one]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    help="How long the certificates are valid; the CA is for ten years.",
)
@output_option('{"names": [...], "until", "ca_until", "new_ca", "settings": {...}}')
def init(folder: Path, names: tuple[str, ...], days: int, output: Output) -> None:
    """Make a private CA in the folder DIR, a server's and a client's certificate, and print how to use them.

    Repeat the command to renew the certificates, or to change the names: the CA is kept while it is valid.
    Then send the daemons SIGHUP. Only you can read the files. The key ca.key is needed for nothing else: keep
    it away from the machines of the daemons.
    """
    # Imported on use: OpenSSL is large.
    from synrepl.transports.authority import init as init_authority

    made = init_authority(folder, names, days=days, now=time.time())
    ca, certificate, key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
    listener = f"certificate={certificate}:privateKey={key}"
    client = f"certificate={folder / 'client.pem'}:privateKey={folder / 'client.key'}"
    settings = {
        "listen": f"tls:9092:{listener}",
        "http": f"tls:9093:{listener}",
        "ca_file": str(ca),
        "certificate_file": str(certificate),
        "private_key_file": str(key),
    }
    until, ca_until = f"{made.until:%Y-%m-%d}", f"{made.ca_until:%Y-%m-%d}"
    result = {
        "names": list(made.names),
        "until": made.until.timestamp(),
        "ca_until": made.ca_until.timestamp(),
        "new_ca": made.is_new_ca,
        "settings": settings,
    }
    lines = [
        f"certificates for {', '.join(made.names)}: valid until {until}, then repeat this command",
        f"a new CA, which every daemon and client needs: {ca}" if made.is_new_ca else f"signed by {ca}",
        f"the CA is valid until {ca_until}",
        "",
        "settings of a daemon:",
        *(f"    {name}: {value}" for name, value in settings.items()),
        "upstream of a replica:",
        f"    upstream: tls:{made.names[0]}:9092",
        "options of a command:",
        f"    --url https://{made.names[0]}:9093 --ca-file {ca}",
        "a client that shows a certificate:",
        f"    tls:{made.names[0]}:9092:trustRoots={ca}:{client}",
    ]
    output.show(result, lines)
