"""Write the files that derive from the code: pages of the manual, the man page and the example settings.

The reference (`BUILT`) is not kept in the repository, but the list of what outside programs may rely on is.
"""

import argparse
import inspect
import json
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import wrap
from types import SimpleNamespace
from typing import Any, Final

import click
import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lib.cache_reference import cache_reference  # noqa: E402  # after the path
from scripts.lib.http_reference import http_reference, streams_of  # noqa: E402  # after the path
from scripts.lib.library_reference import library_reference  # noqa: E402
from scripts.lib.manual import BUILT, DOCS  # noqa: E402
from synrepl.base.metric_values import Registry  # noqa: E402
from synrepl.base.metrics import Metrics  # noqa: E402
from synrepl.base.rights import command_operation  # noqa: E402
from synrepl.cli.command import EXIT_CODES  # noqa: E402
from synrepl.cli.main import main as synrepl_command  # noqa: E402
from synrepl.config import settings as declared_settings  # noqa: E402
from synrepl.declarations import all_commands, all_routes  # noqa: E402
from synrepl.missing_rooms import describe_rooms, missing_rooms  # noqa: E402
from synrepl.replication.follower.modes import Verdict  # noqa: E402
from synrepl.replication.follower.states import TRANSITIONS, StreamState  # noqa: E402
from synrepl.rooms import rooms  # noqa: E402
from synrepl.streams.stream import Stream  # noqa: E402
from synrepl.streams.table import StreamTable  # noqa: E402
from synrepl.wire.codec import MAX_LENGTH  # noqa: E402
from synrepl.wire.commands import Position  # noqa: E402
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST, Dialect, Span, release_text  # noqa: E402
from synrepl.wire.grammar import Command, CommandForm, Side  # noqa: E402

MADE: Final = "<!-- Written by scripts/docs from the code; edit that. -->\n"

WIRE: Final = f"""\
This page has every command with its grammar in each release. How real peers use them is in [real
peers](peers.md).

The wire carries lines of UTF-8. A line has at most {MAX_LENGTH:,} bytes, and then LF: the name of a
command, then its fields. Each release of Synapse knows some commands, and some of their fields. In the
tables, `all` is every release since 0.21, the first one with this wire. A connection speaks as one
release. A command sent by "Redis, from anyone" travels on the homeserver's Redis channel, one message
for each line, without the LF. Named dialects:"""

STREAMS: Final = """\
This page has every stream with the fields of its rows, in order, and the releases that have each field.

A row is a JSON array; in a stream with several kinds of rows it is `[tag, [fields]]`. The daemon reads
a row in the shape of any release, and stores the newest shape. A field that the row lacks gets the
value in the column `default`. A field "before 1.7" is gone since 1.7, and the newest shape lacks it. The
value of a "kept" field is stored after the fields of the newest shape, in the log, in the changelog and
in archives. Only followers of releases that have the field receive it; the pages of `rows` omit it.

* **Kept** streams are in the log on disk. **Ephemeral** ones are in memory, and their tokens start
  again with the daemon.
* **Key**: a newer row with the same key replaces an older one.
* **Ordered**: facts arrive in the order of their tokens.
* **Monotonic**: tokens do not go back when the writer restarts."""

SETTINGS: Final = """\
This page has every setting of `synrepl serve`, `twistd synrepl` and `twist synrepl`. Give them as flags, or
as keys of the YAML file in `--config`; flags win. An unknown key is an error. An example is
[contrib/config.example.yaml](../../contrib/config.example.yaml)."""

METRICS: Final = """\
This page has every metric at `/metrics` of the HTTP endpoint, in the format of Prometheus. Labels are
names of streams, writers, commands and caches (of which the number is limited), directions (`in`, `out`),
roles, states of replicas, and codes of errors."""

METRICS_OF_FOLLOWERS: Final = """\
Gaps, refused rows, reconnects and failed fetches are counted in the follower's process: in a worker,
pass `Follower` and `connect` a `Metrics` with a registry that you serve. Metrics of caches cover the
caches passed to `Metrics.watch_caches`."""

FOLLOWER: Final = """\
This page explains how a follower applies each fact of a stream once and in order. Each stream has a state
machine of its own, `StreamMachine` (`synrepl/replication/follower/stream.py`). It does no I/O: it is fed
events, and returns actions. `StreamExecutor` (`executor.py` beside it) performs the actions: it
invalidates caches, calls subscribers, fetches missing facts and waits."""

FOLLOWER_STATES: Final = """\
In every state except `DISCONNECTED` and `LIVE` the stream is blocked: rows and positions that arrive are
queued. Once nothing blocks it, it continues with the rest of a page or a burst, then with an open gap, then
with the queue, and may be blocked again in the same step: the diagram leaves these steps out, the table has
them."""

FOLLOWER_POSITIONS: Final = """\
`AppliedPositions` (`history.py`) owns the position of each writer. A position advances after a fact was
applied and the fact's caches were invalidated, or when a POSITION shows that nothing is missing. Before it
advances over facts that were not applied, everything that they could invalidate is dropped
([G4](guarantees.md)). With a batch subscriber a batch of the facts that are ready counts as one fact
(`PendingFacts.take_batches`). What a POSITION shows depends on the mode of the connection (`modes.py`):

* **Push**, before 1.13: the server pushes the missed facts, then sends POSITION.
* **Pull**, since 1.13: the server announces the position of each writer; the follower fetches what it missed.
* **Shared**, on Redis: as pull, but every writer announces its own position, which may fall at any time.

The order of the facts (`history.py`) decides which ones are repetitions. A fact of an **ordered** stream is a
repetition if its token is not above the position. Where rows name no writer, or facts are **unordered**, the
follower remembers the last facts and drops those that come again. On Redis, a burst that **descends** is
sorted before it is applied."""

FINDING: Final = """\
A command finds its daemon by `--url` or `$SYNREPL_URL`, its secret by `--secret-file` or
`$SYNREPL_SECRET_FILE`, and the CAs to trust by `--ca-file` or `$SYNREPL_CA_FILE`; an option comes before
the variable. Wrong usage and permanent failures end a command at once. Transient failures are retried with
`--retry`, which some commands do by default."""

DURATIONS: Final = "Durations are seconds, or have a unit: `250ms`, `30s`, `5m`, `12h`, `7d`, `2w`."

SENDERS: Final = {Side.SERVER: "the server", Side.CLIENT: "the client", Side.BROKER: "Redis, from anyone"}


# The wire


def wire() -> str:
    """Return the page of the wire: every command."""
    lines = [
        "# The wire",
        "",
        WIRE,
        "",
        *(f"* `{one}` is release {release_text(one.release)}" for one in (LEGACY, MIDDLE, CURRENT)),
        "",
        f"The newest release looked at is {release_text(NEWEST.release)}.",
    ]
    for command in all_commands():
        lines += ["", f"## {command.NAME}", "", *_doc(command), "", *_about(command)]
    return _page(lines)


def _about(command: type[Command]) -> Iterator[str]:
    senders = ", ".join(name for side, name in SENDERS.items() if side & command.SENT_BY)
    takes = ""
    if command.RIGHT:
        streams = streams_of(command_operation(command))
        takes = f" Right: `{command.RIGHT}`{f'; streams: {streams}' if streams else ''}."
    yield f"Sent by: {senders}. Releases: {_span(command.SPAN)}.{takes}"
    yield ""
    yield from _table(
        ("releases", "line"), [(_span(span), f"`{grammar}`") for span, grammar in _grammars(command)]
    )
    types = typing.get_type_hints(command)
    if command.IS_JSON:
        yield ""
        yield from _table(
            ("member of the body", "type", "default"),
            [
                (
                    f"`{member.encode_name}`",
                    f"`{_type(types[member.name])}`",
                    ""
                    if member.required
                    else f"`{json.dumps(msgspec.to_builtins(_member_default(member)))}`",
                )
                for member in msgspec.structs.fields(command)
            ],
        )
    elif command.FIELDS:
        yield ""
        yield from _table(
            ("field", "type", "releases", "in other releases"),
            [
                (
                    f"`{field.name}`",
                    f"`{_type(types[field.name])}`",
                    _span(field.span),
                    _default(field.default) if _span(field.span) != "all" else "",
                )
                for field in command.FIELDS
            ],
        )
    yield ""
    yield "```text"
    yield from dict.fromkeys(line.rstrip() for line in command.EXAMPLES.values())
    yield "```"


def _member_default(member: msgspec.structs.FieldInfo) -> Any:
    if member.default is msgspec.UNSET:
        return ""
    return member.default if member.default_factory is msgspec.NODEFAULT else member.default_factory()


def _grammars(command: type[Command]) -> list[tuple[Span, str]]:
    """The grammar of the line for each span of releases; neighboring spans with the same grammar are one."""
    spans = [command.SPAN, *(field.span for field in command.FIELDS)]
    ends = {edge for span in spans for edge in (span.since, span.until) if edge is not None}
    edges = sorted(edge for edge in ends if edge in command.SPAN)
    found: list[tuple[Span, str]] = []
    for position, edge in enumerate(edges):
        until = edges[position + 1] if position + 1 < len(edges) else command.SPAN.until
        grammar = CommandForm(command, Dialect(release=edge, name=release_text(edge))).grammar()
        since = found.pop()[0].since if found and found[-1][1] == grammar else edge
        found.append((Span(since=since, until=until), grammar))
    return found


# The streams


def streams() -> str:
    """Return the page of every stream."""
    table = StreamTable.default()
    lines = [
        "# The streams",
        "",
        STREAMS,
        "",
        *_table(
            ("stream", "where", "releases", "ordered", "monotonic"),
            [
                (
                    f"[`{one.name}`](#{one.name})",
                    _kept(one),
                    _span(one.span),
                    _yes(one.ordered),
                    _yes(one.monotonic),
                )
                for one in table
            ],
        ),
    ]
    for stream in table:
        lines += ["", f"## {stream.name}", "", *_stream(stream)]
    return _page(lines)


def caches() -> str:
    """Return the page of what drops entries of caches."""
    return _page(list(cache_reference()))


def _stream(stream: Stream[Any]) -> Iterator[str]:
    for position, kind in enumerate(stream._kinds):
        if position:
            yield ""
        if kind.tag:
            yield f"### `{kind.tag}`"
            yield ""
        yield from _doc(kind.row)
        yield ""
        flat = f" Before {release_text(kind.flat.until)}: the bare fields." if kind.flat.until else ""
        yield f"Releases: {_span(_both(stream.span, kind.span))}.{flat} Key: {_key(stream, kind.row)}."
        yield ""
        yield from _table(
            ("field", "type", "releases", "in rows of other releases"),
            [
                (
                    f"`{field.name}`",
                    f"`{_type(field.type)}`",
                    _span(field.span) + (", kept" if field.kept else ""),
                    _default(field.default) if _span(field.span) != "all" and not field.gone else "",
                )
                for field in kind._fields
            ],
        )


def _key(stream: Stream[Any], row: type[Any]) -> str:
    """The fields of the key, found by calling `stream.key` on a row whose fields hold their own names."""
    if stream.key is None:
        return "none; no row replaces another"
    names = list(row.__struct_fields__)
    named: Any
    try:
        named = row(*names)
    except AttributeError:  # the row checks its values
        named = SimpleNamespace(**{name: name for name in names})
    found = [str(part).strip('"') for part in stream.key(named)]
    return ", ".join(f"`{part}`" for part in found if part in names)


def _both(one: Span, other: Span) -> Span:
    until = min((span.until for span in (one, other) if span.until), default=None)
    return Span(since=max(one.since, other.since), until=until)


def _kept(stream: Stream[Any]) -> str:
    return "ephemeral" if stream.ephemeral else "kept"


# The follower


def follower() -> str:
    """Return the page of the follower: its states, their transitions, and its positions."""
    events = list(dict.fromkeys(event for events in TRANSITIONS.values() for event in events))
    return _page(
        [
            "# How a follower works",
            "",
            FOLLOWER,
            "",
            "## States",
            "",
            *_table(("state", "meaning"), [(f"`{one.name}`", _sentence(one.value)) for one in StreamState]),
            "",
            "```mermaid",
            "stateDiagram-v2",
            "    accTitle: States of a stream, with the events that lead from one to the next",
            f"    [*] --> {next(iter(StreamState)).name}",
            *(f"    {one.name} --> {other.name}: {label}" for (one, other), label in _arrows().items()),
            "```",
            "",
            FOLLOWER_STATES,
            "",
            *_table(
                ("event", *(f"`{one.name}`" for one in StreamState)),
                [
                    (f"`{event.__name__}`", *(_next(state, event) for state in StreamState))
                    for event in events
                ],
            ),
            "",
            "## Positions",
            "",
            FOLLOWER_POSITIONS,
            "",
            *_table(("a POSITION is", "when"), [(f"`{one.name}`", _sentence(one.value)) for one in Verdict]),
        ]
    )


def _arrows() -> dict[tuple[StreamState, StreamState], str]:
    """The transitions that the diagram shows, as pairs of states, with the names of their events."""
    found: dict[tuple[StreamState, StreamState], list[str]] = {}
    for state, events in TRANSITIONS.items():
        for event, following in events.items():
            is_end = state is not StreamState.LIVE and StreamState.LIVE in following
            for other in StreamState:
                is_next = is_end and other in TRANSITIONS[StreamState.LIVE][Position]
                if other in following and other is not state and (other is StreamState.LIVE or not is_next):
                    found.setdefault((state, other), []).append(event.__name__)
    return {step: ", ".join(events) for step, events in found.items()}


def _next(state: StreamState, event: type) -> str:
    following = TRANSITIONS[state].get(event, ())
    return ", ".join(f"`{one.name}`" for one in StreamState if one in following) or "error"


# Settings, metrics, commands


def settings() -> str:
    """Return the page of every setting."""
    rows = []
    for one in declared_settings():
        flag = {"file": "", "switch": f"`--{one.flag}`"}.get(one.kind, f"`--{one.flag} {one.metavar}`")
        rows.append((flag, f"`{one.name}`", f"`{one.default_text}`", one.help))
    return _page(
        [
            "# The settings",
            "",
            SETTINGS,
            "",
            *_table(("flag", "key in the file", "default", ""), rows),
        ]
    )


def example_settings() -> str:
    """Return the example configuration file: every setting with its default, or an example as a comment."""
    lines = [
        "# Every setting, with its default. Use it with:  synrepl serve --config this-file.yaml",
        "# Flags have the same names, with - for _. A flag on the command line overrides this file.",
    ]
    for one in declared_settings():
        lines += ["", *(f"# {line}" for line in wrap(one.help, 108, break_on_hyphens=False))]
        default = one.default if isinstance(one.default, str) else json.dumps(one.default, default=dict)
        lines.append(f"#{one.name}: {one.example}" if one.example else f"{one.name}: {default}")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Return the page of every metric."""
    registry = Registry()
    for metrics_class in (Metrics, *(room.metrics_class() for room in rooms())):
        if metrics_class is not None:
            metrics_class(registry)
    families: Iterable[Any] = registry.collect()
    rows = [
        (
            f"`{family.name}_total`" if family.type == "counter" else f"`{family.name}`",
            family.type,
            ", ".join(f"`{label}`" for label in family._labelnames),
            family.documentation,
        )
        for family in families
    ]
    return _page(
        [
            "# The metrics",
            "",
            METRICS,
            "",
            *_table(("name", "type", "labels", "meaning"), rows),
            "",
            METRICS_OF_FOLLOWERS,
        ]
    )


def cli() -> str:
    """Return the page of every command of `synrepl`."""
    lines = [
        "# The command line",
        "",
        "This page has every command of `synrepl`, with its options.",
        "",
        f"`synrepl`: {inspect.getdoc(synrepl_command.callback)} `python -m synrepl` is the same.",
        "",
        EXIT_CODES,
        "",
        FINDING,
        "",
        DURATIONS,
    ]
    for name, command in _commands(synrepl_command):
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        options = _options(command)
        usage = " ".join([f"synrepl {name}", *(one.human_readable_name for one in arguments), "[options]"])
        lines += ["", f"## {name}", "", f"    {usage}", "", *_doc(command.callback), ""]
        if name == "serve":
            settings = {one.name for one in declared_settings()}
            options = [one for one in options if one.name not in settings]
            lines += ["The other options are [the settings](settings.md), by the same names.", ""]
        if options:
            lines += _table(("option", "default", ""), [_option(one) for one in options])
    return _page(lines)


def http() -> str:
    """Return the page of HTTP: every route and error code."""
    return _page(["# HTTP", "", *http_reference()])


def library() -> str:
    """Return the page of every public name of the library."""
    return _page(["# The library", "", *library_reference()])


def contract() -> str:
    """Return a line for each thing that outside programs may rely on: what a review must see change."""
    lines = ["Written by scripts/docs from the code: what outside programs may rely on, a line each.", ""]
    lines += ["[library]", *_signatures(library()), "", "[settings]"]
    lines += [f"{one.name} --{one.flag} {one.kind} {one.default_text}" for one in declared_settings()]
    lines += ["", "[commands of synrepl]"]
    for name, command in _commands(synrepl_command):
        arguments = [one.human_readable_name for one in command.params if isinstance(one, click.Argument)]
        flags = sorted(flag for one in _options(command) for flag in (*one.opts, *one.secondary_opts))
        lines.append(" ".join([name, *arguments, *flags]))
    lines += ["", "[HTTP]"]
    for route in all_routes():
        names = [*(one.name for one in route.query), *(f"{one.name}:" for one in route.headers)]
        lines.append(" ".join([route.method, route.path, *names]))
    lines += ["", "[metrics]", *(" ".join(cells[:3]) for cells in _rows(metrics()))]
    lines += ["", "[rows]"]
    for stream in StreamTable.default():
        fields = [f"{cells[0]}({cells[1]})" for cells in _rows("\n".join(_stream(stream)))]
        lines.append(" ".join([stream.name, _span(stream.span), *fields]))
    lines += ["", "[wire]"]
    for one in all_commands():
        lines += [f"{grammar} ({_span(span)})" for span, grammar in _grammars(one)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _signatures(page: str) -> Iterator[str]:
    """Yield the signatures of the library's page, each in a line; methods with their class."""
    for name, declared in re.findall(
        r"^#{3,4} ([^\n]*)\n\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    ):
        line = re.sub(r"\s+", " ", declared.strip())
        line = line.replace("( ", "(").replace(", )", ")").replace(",)", ")")
        yield f"{name.partition('.')[0]}: {line}" if "." in name else line


def _rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of the tables of a page, without those of their heads."""
    for line in page.splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            yield [cell.strip().replace("`", "").replace("\\|", "|") for cell in cells]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name; a command of a group has the name of the group before its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in _commands(command))
        else:
            yield name, command


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _option(option: click.Option) -> tuple[str, str, str]:
    flag = ", ".join([*option.opts, *option.secondary_opts])
    if not (option.is_flag or option.secondary_opts):
        choices = "\\|".join(option.type.choices) if isinstance(option.type, click.Choice) else ""
        flag += f" {option.metavar or choices or option.type.name.upper()}"
    default = "required" if option.required else ""
    context = click.Context(synrepl_command, **synrepl_command.context_settings)
    if not option.required and (shown := option.get_help_extra(context).get("default")):
        default = f"`{shown}`"
    return f"`{flag}`", default, option.help or ""


# The man page


def man() -> str:
    """Return the man page of `synrepl`, in roff."""
    about = inspect.getdoc(synrepl_command.callback) or ""
    lines = [
        '.\\" Written by scripts/docs from the code; edit that.',
        ".TH SYNREPL 1",
        ".SH NAME",
        f"synrepl \\- {_roff(about.splitlines()[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B synrepl",
        ".I COMMAND",
        "[OPTION]... [ARGUMENT]...",
        ".SH DESCRIPTION",
        *_roff_paragraphs(about),
        ".PP",
        _roff(FINDING),
        ".PP",
        _roff(DURATIONS),
        ".SH COMMANDS",
    ]
    for name, command in _commands(synrepl_command):
        lines += [f".SS {_roff(name)}", *_roff_paragraphs(inspect.getdoc(command.callback) or "")]
        for option in _options(command):
            flag, default, text = (part.strip("`") for part in _option(option))
            if default and "[default:" not in text:
                text += " Required." if default == "required" else f" [default: {default}]"
            lines += [".TP", f".B {_roff(flag)}", _roff(text)]
    lines += [".SH EXIT STATUS", *_roff_paragraphs(EXIT_CODES), ".SH SEE ALSO", ".BR twistd (1)"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Escape text as one line of roff: hyphens stay ASCII, backquotes go, and the line is no request."""
    text = text.replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\\&" + " ".join(text.split())


def _roff_paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.replace("\b", "").strip()):
        yield from (".PP", _roff(paragraph))


# Markdown


def _page(lines: Iterable[str]) -> str:
    title, *rest = lines
    return "\n".join([title, "", MADE.rstrip(), *rest]) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    texts = ["| " + " | ".join(cell.replace(" | ", " \\| ") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *texts]


def _doc(documented: object) -> list[str]:
    return (inspect.getdoc(documented) or "").splitlines()


def _type(of: Any) -> str:
    text = of.__name__ if isinstance(of, type) and not typing.get_args(of) else str(of)
    text = re.sub(r"synrepl(\.\w+)*\.", "", text)
    return re.sub(r"\b(typing|builtins|collections\.abc)\.", "", text)


def _span(span: Span) -> str:
    text = str(span).replace("until", "before")
    return "all" if text == "always" else text


def _default(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}
    if isinstance(value, bool) or value is None:
        return f"`{words[value]}`"
    return f"`{value}`" if isinstance(value, (str, int, list, dict)) and value != "" else "empty"


def _yes(claim: bool) -> str:
    return "yes" if claim else "no"


def belongings() -> str:
    """What belongs to which room; of rooms that are not installed, as it is stored."""
    stored = json.loads((ROOT / "synrepl" / "missing_rooms.json").read_text("utf-8"))
    described = describe_rooms()
    absent = missing_rooms()
    for kind, owners in stored.items():
        described[kind] |= {name: owner for name, owner in owners.items() if owner in absent}
    return json.dumps(described, indent=1, sort_keys=True) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/wire.md": wire,
    "reference/streams.md": streams,
    "reference/caches.md": caches,
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/cli.md": cli,
    "reference/http.md": http,
    "reference/library.md": library,
    "explanation/follower.md": follower,
    "../contrib/config.example.yaml": example_settings,
    "reference/api.txt": contract,
    "../contrib/man/synrepl.1": man,
    "../synrepl/missing_rooms.json": belongings,
}


STORED: Final = tuple(name for name in PAGES if name not in BUILT)
"""The files that are kept in the repository."""


def build(folder: Path = DOCS, names: Iterable[str] = BUILT) -> list[Path]:
    """Write those of these files that are missing or out of date; return them. Others may read meanwhile."""
    changed = outdated(folder, names)
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as new:
            new.write(text)
        Path(new.name).chmod(0o644)
        Path(new.name).replace(path)
    return list(changed)


def outdated(folder: Path = DOCS, names: Iterable[str] = STORED) -> dict[Path, str]:
    """Return the files that differ from what the code gives, with their new content."""
    made = {folder / name: PAGES[name]() for name in names}
    return {path: text for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text}


def main() -> int:
    """Write the files that differ; with `--check` report the stored ones, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument("--built", action="store_true", help="write only what is not in the repository")
    options = parser.parse_args()
    if options.check:
        for path in (changed := outdated()):
            print(f"out of date: {path.relative_to(ROOT)}; run scripts/docs", file=sys.stderr)
        return 1 if changed else 0
    for path in build(names=BUILT if options.built else PAGES):
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
