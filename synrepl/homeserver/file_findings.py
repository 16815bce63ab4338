"""Finds what is wrong in a homeserver's files alone; without I/O."""

from collections.abc import Collection, Iterator, Sequence
from os.path import normpath
from typing import Final

from synrepl.errors import suggest
from synrepl.homeserver.addresses import LOOPBACK, InstanceEntry
from synrepl.homeserver.configuration import ALIKE, Homeserver, Process
from synrepl.homeserver.duties import DOES, DUTIES, UNDONE
from synrepl.homeserver.findings import RESTART_ALL, RESTART_ONE, RESTART_WITH_MAIN, Finding, Unseen
from synrepl.homeserver.merging import MAIN
from synrepl.homeserver.refusals import KNOWN, Refusal, refused_by
from synrepl.homeserver.work_findings import find_in_work, find_media_with_others, find_without_work
from synrepl.html.humanize import counted, listed, several
from synrepl.wire.dialect import NEWEST, Release, Span, release_text
from synrepl.wire.text import printable


def find_in_files(
    homeserver: Homeserver, releases: Collection[Release] | None = (), *, there: Collection[str] = ()
) -> Iterator[Finding]:
    """Find what is wrong in the files.

    `releases` are those of the processes, as far as they are known; without any, the one that was given with
    the files counts, or else the newest. With None, as they are to come, what releases refuse is left out.
    `there` are processes that were heard or measured. Of a part of the files, without the server_name, what
    is missing is not told.
    """
    is_whole = bool(homeserver.server_name)
    yield from _read_by_main(homeserver)
    yield from _left_in(homeserver)
    if releases is not None:
        asked = releases or [homeserver.release or NEWEST.release]
        yield from _refused(homeserver, asked)
        yield from _ignored(homeserver, min(asked))
        if is_whole:
            yield from find_media_with_others(homeserver, asked)
    yield from _twice(homeserver)
    yield from _replaced(homeserver)
    if is_whole:
        yield from find_in_work(homeserver)
    if is_whole and homeserver.has_workers and not homeserver.has_unknown_names:
        yield from _nobody(homeserver, there)
    if is_whole and not homeserver.has_unknown_names:
        missing = [name for name in homeserver.named if _is_missing(homeserver, name)]
        yield from find_without_work(homeserver, missing)
    yield from _misspelled(homeserver)
    yield from (one for one, is_wrong in _all_wrong_ports(homeserver) if is_wrong)
    yield from _unmapped(homeserver)
    yield from _shared_ports(homeserver)
    yield from homeserver.in_values
    if is_whole:
        yield from _contradictions(homeserver)
        yield from (one for one, is_wrong in _told_otherwise(homeserver) if is_wrong)


WITH_KEY: Final = {
    "worker_app": "from 1.49 on a main process does not start with it",
    "worker_name": "a main process with it has that name, and then does and writes nothing, or does not"
    " start",
}
"""What a main process does with a key of workers."""


def unseen_in_files(homeserver: Homeserver) -> list[Unseen]:
    """Return what cannot be known from the files alone."""
    found = list(homeserver.unread)
    is_open = not (homeserver.has_workers and homeserver.server_name) or homeserver.has_unknown_names
    keys = homeserver.named.get(MAIN, ())
    if keys and homeserver.left_in is None and _is_missing(homeserver, MAIN):
        found.append(Unseen(what=MAIN, why=f"no file that was given is of it ({keys[0]}): add it"))
    found += [
        Unseen(
            what=name,
            why=_not_given(keys),
        )
        for name, keys in homeserver.named.items()
        if is_open and name != MAIN and _is_missing(homeserver, name)
    ]
    return found


def _not_given(keys: Sequence[str]) -> str:
    """Say that no file is of a name at these keys. `instance_map` alone leaves it nothing to do."""
    work = [key for key in keys if not key.startswith("instance_map")]
    why = f"no file that was given is of it ({(work or keys)[0]}): add it, with --worker FILE for a worker"
    return f"{why}; if there is no such process, nobody does what that key leaves to it" if work else why


# -- what is refused -----------------------------------------------------------------------------------------


def _refused(homeserver: Homeserver, releases: Collection[Release]) -> Iterator[Finding]:
    """One finding of each thing that is refused, however many processes have it in their files."""
    grouped: dict[tuple[str, str], tuple[Refusal, list[Process]]] = {}
    for process in homeserver.processes:
        for release in sorted(releases):
            for one in refused_by(process.refusals, release):
                _, processes = grouped.setdefault((one.kind, one.why), (one, []))
                if process not in processes:
                    processes.append(process)
    for one, processes in grouped.values():
        names = [process.name for process in processes]
        listener = _and_listener(homeserver) if one.names_main else ""
        does, it = "do" if len(names) > 1 else "does", "them" if " are no " in one.why else "it"
        yield Finding(
            kind=one.kind,
            stream=one.stream,
            process=names[0] if len(names) == 1 else "",
            count=len(names),
            why=f"{one.why}: {_refuse(one.span)} {it}, and {several([*map(printable, names)])} {does} not"
            f" start there{_left_undone(homeserver, names)}",
            remedy=one.remedy + listener + _if_newer(homeserver, one, releases),
            cost=RESTART_ALL if len(names) > 1 else RESTART_WITH_MAIN if listener else RESTART_ONE,
        )


def _if_newer(homeserver: Homeserver, one: Refusal, releases: Collection[Release]) -> str:
    """What to do where the release was not told, and is one that may know what older ones do not."""
    is_told = homeserver.release is not None or NEWEST.release not in releases
    return "" if is_told or one.span.until != KNOWN.until else NEWER_RELEASE


NEWER_RELEASE: Final = f"; if the homeserver is newer than {NEWEST.name}, give --synapse RELEASE"


def _left_undone(homeserver: Homeserver, names: Sequence[str]) -> str:
    """Say what nobody does while these processes do not run. Without the main process nothing runs."""
    if MAIN in names:
        return ""
    others = {duty for one in homeserver.processes if one.name not in names for duty in one.duties}
    own = {duty for one in homeserver.processes if one.name in names for duty in one.duties} - others
    undone = [words for duty, words in UNDONE.items() if duty in own]
    writes = [key for key, writers in homeserver.writers.items() if writers and set(writers) <= set(names)]
    if writes:
        undone.append(f"requests that write {listed(writes)} fail")
    return f"; meanwhile {listed(undone)}" if undone else ""


def _read_by_main(homeserver: Homeserver) -> Iterator[Finding]:
    """Files of workers in a folder of the main process: it comes first, as nothing runs without that."""
    for file, key in homeserver.read_by_main:
        yield Finding(
            kind="refused_at_start",
            process=MAIN,
            why=f"the main process reads {file}, which is a worker's (`{key}`): {WITH_KEY[key]}",
            remedy=f"move {file} out of what the main process is given; or give it with --worker here, if"
            " the main process is not given that folder",
            cost=RESTART_ONE,
        )


def _left_in(homeserver: Homeserver) -> Iterator[Finding]:
    """Keys of a worker in the file with the listeners of the main process, which no other file is of."""
    left = homeserver.left_in
    if left is None or not _is_missing(homeserver, MAIN):
        return
    keys = [f"`{one}`" for one in left.keys]
    yield Finding(
        kind="refused_at_start",
        process=MAIN,
        why=f"{left.file} has a `{left.keys[0]}`, and is taken for a worker's; no file that was given is the"
        f" main process': {WITH_KEY[left.keys[0]]}",
        remedy=f"if it is the main process', remove {listed(keys)}, which belong{'s' * (len(keys) == 1)} into"
        " a file of the worker's own, given beside this one; if it is not, give the file of the main process"
        " as well",
        cost=RESTART_ONE,
    )


def _ignored(homeserver: Homeserver, release: Release) -> Iterator[Finding]:
    """Keys that this release does not read yet."""
    for one in homeserver.newer:
        # What is below a key that is ignored is not told again.
        if release >= one.since or (one.key != "redis" and "redis." in one.key and release < (1, 13, 0)):
            continue
        duty = next((duty for duty in DUTIES if duty.names == one.key and duty.switch), None)
        yield Finding(
            kind="ignored_key",
            why=f"`{one.key}` is of {release_text(one.since)} and newer: {release_text(release)} ignores it"
            f" in {one.file}, and says nothing",
            remedy="upgrade, or remove it"
            + (
                f" and set `{duty.switch}: false` in the shared file and `worker_app: {duty.app}` in the"
                " worker's"
                if duty
                else ""
            ),
            cost=RESTART_ALL,
        )


def _replaced(homeserver: Homeserver) -> Iterator[Finding]:
    for one in homeserver.replaced:
        yield Finding(kind="replaced_key", why=one.why, remedy=one.remedy, cost=RESTART_ALL)


def notes_on_releases(homeserver: Homeserver, releases: Collection[Release] = ()) -> Iterator[Finding]:
    """Releases that are newer than those that are known, and what of the files a newer one may have."""
    newest = max(releases or [homeserver.release or NEWEST.release])
    if newest in KNOWN:
        return
    whys = {
        one.why: process.name
        for process in homeserver.processes
        for one in process.refusals
        if one.span.until == KNOWN.until and newest not in one.span
    }
    asks = f"; of the files {listed([*whys])}, as far as is known" if whys else ""
    yield Finding(
        kind="newer_release",
        why=f"Synapse {release_text(newest)} is newer than what is known here, and taken for"
        f" {NEWEST.name}{asks}",
        remedy="upgrade synrepl, or look into the notes of that release for what changed",
    )


def _refuse(span: Span) -> str:
    if span.until == KNOWN.until and span.since <= (0, 21, 0):
        return f"every release up to {NEWEST.name} refuses"
    since = "" if span.since <= (0, 21, 0) else f" from {release_text(span.since)} on"
    until = "" if span.until is None else f" before {release_text(span.until)}"
    return f"releases{since}{until} refuse" if since or until else "every release refuses"


# -- names and ports -----------------------------------------------------------------------------------------


def _is_missing(homeserver: Homeserver, name: str) -> bool:
    process = homeserver.process(name)
    return process is None or (not process.file and process.metrics is None)


def _nobody(homeserver: Homeserver, there: Collection[str]) -> Iterator[Finding]:
    """Names of no process. Without the file of any worker they are only not seen."""
    for name, keys in homeserver.named.items():
        # The main process is always there.
        if name == MAIN or name in there or not _is_missing(homeserver, name):
            continue
        share = " and".join((", ".join(keys[:-1]), f" {keys[-1]}")) if len(keys) > 1 else keys[0]
        yield Finding(
            kind="unknown_process",
            process=name,
            count=len(keys),
            why=f"no file that was given is of {printable(name)}, to which {share}"
            f" leave{'s' * (len(keys) == 1)} work: if there is no such process, nobody does it"
            f"{_meant(homeserver, name)}",
            remedy=f"correct the name, start {printable(name)}, or give its file with --worker",
            cost=RESTART_ALL,
        )


def _meant(homeserver: Homeserver, name: str) -> str:
    """What may be meant by a name that no file has."""
    if name == "main":
        return f"; the main process is called {MAIN} there"
    keys = _keys(homeserver, name)
    # What the same key names besides is no slip of this name.
    known = [
        one.name
        for one in homeserver.processes
        if one.file and one.name not in homeserver.unnamed and keys.isdisjoint(_keys(homeserver, one.name))
    ]
    around = [one for one in known if name in one or one in name]
    if hint := f"; did you mean {around[0]}?" if len(around) == 1 else suggest(name, known):
        return hint
    if unnamed := sum(map(len, homeserver.unnamed.values())):
        return f"; {_without_name(unnamed)}, and one of them may be meant"
    if "instance_map" in keys and all(one.name != MAIN for one in homeserver.instances):
        return f"; the main process is called main in instance_map, and {MAIN} elsewhere"
    return ""


def _keys(homeserver: Homeserver, name: str) -> set[str]:
    """The keys that give a name, without their files."""
    return {one.partition(" in ")[0] for one in homeserver.named.get(name, ())}


def _without_name(count: int) -> str:
    return f"{counted(count, 'file has', 'files have')} no `worker_name`"


def _misspelled(homeserver: Homeserver) -> Iterator[Finding]:
    for one in homeserver.misspelled:
        key, file, meant = one.key, one.file, one.meant
        if not meant:
            yield Finding(
                kind="misspelled_key",
                why=f"`{printable(key)}` in {file} is no setting: Synapse ignores it, and says nothing; it"
                " starts no worker",
                remedy="start each worker with a file of its own, which has its `worker_app` and"
                " `worker_name`, and remove that key",
                cost=RESTART_ALL,
            )
            continue
        yield Finding(
            kind="misspelled_key",
            why=f"`{printable(key)}` in {file} is no setting: Synapse ignores it, and says nothing;"
            f" did you mean {meant}?",
            remedy=f"rename it to `{meant}`" if one.fits else _instead(meant),
            cost=RESTART_ALL,
        )


def _instead(meant: str) -> str:
    """What to do with a misspelled key whose value is none of the setting that it is like."""
    duty = next((duty for duty in DUTIES if duty.names == meant), None)
    if duty is None:
        return f"remove it; its value is none of `{meant}` either"
    value = "[NAME]" if duty.takes_list else "NAME"
    return (
        f"remove it; its value is none of `{meant}` either, which names processes. If one is meant that"
        f" {DOES[duty.name]}, set `{meant}: {value}` in the shared file, with its worker_name"
    )


def _and_listener(homeserver: Homeserver) -> str:
    """What to do besides naming the main process in `instance_map`, if it has no listener for it."""
    if not homeserver.server_name:
        return ""
    left, main = homeserver.left_in, homeserver.process(MAIN)
    if left is not None:
        file = "" if left.has_replication else left.file
    elif main is None or not main.file or main.listens or (main.listens is None and main.has_listeners):
        file = ""
    else:
        file = main.file
    return file and (
        f"; and add to `listeners` in {file} one of type http with the resource replication, at that port:"
        " the main process has none"
    )


def notes_on_addresses(homeserver: Homeserver) -> Iterator[Finding]:
    """Addresses of processes, the database and Redis that may be other ways to the same."""
    yield from (one for one, is_wrong in _all_wrong_ports(homeserver) if not is_wrong)
    if homeserver.server_name:
        yield from (one for one, is_wrong in _told_otherwise(homeserver) if not is_wrong)


def notes_on_listeners(homeserver: Homeserver) -> Iterator[Finding]:
    """A main process that listens nowhere: it starts, and logs nothing of it. Its file may be shortened."""
    main = homeserver.process(MAIN)
    if main is None or not main.file or main.has_listeners or not homeserver.server_name:
        return
    yield Finding(
        kind="no_listeners",
        process=MAIN,
        why=f"{main.file} has no `listeners`: the main process starts, and serves nobody"
        + (": neither clients, other servers, nor its workers" if homeserver.has_workers else ""),
        remedy=f"add `listeners` to {main.file}, one of type http with the resources client and federation"
        + (
            ", unless workers serve all of them, and one with the resource replication" + _mapped(homeserver)
            if homeserver.has_workers
            else ""
        )
        + "; or give the file that has them as well",
        cost=RESTART_ONE,
    )


def _mapped(homeserver: Homeserver) -> str:
    """Where `instance_map` has the main process."""
    where = next((one.where for one in homeserver.instances if one.name == MAIN), None)
    return "" if where is None else f" at {printable(str(where))}, as instance_map.main has it"


def _unmapped(homeserver: Homeserver) -> Iterator[Finding]:
    """Processes that others go to, and that an entry in `instance_map`, which is missing, would not reach."""
    reached = dict.fromkeys(
        [*(name for names in homeserver.writers.values() for name in names), *sorted(homeserver.proxies)]
    )
    mapped = {one.name for one in homeserver.instances}
    for name in reached:
        process = homeserver.process(name)
        is_there = process is not None and process.file and name != MAIN and name not in mapped
        if process is None or not is_there or process.listens is None or process.listens:
            continue
        at = [where for where, is_http in process.holds.items() if is_http]
        yield Finding(
            kind="wrong_port",
            process=name,
            why=f"other processes go to {printable(name)} for what it does, and {process.file} has no"
            " listener with the resource replication: an entry in `instance_map` alone does not help",
            remedy=f"add to {process.file} a listener of type http with the resource replication, at a port"
            " of its own, which its entry in instance_map names"
            + (f" (that at {printable(str(at[0]))} has none)" if at else ""),
            cost=RESTART_ALL,
        )


def _all_wrong_ports(homeserver: Homeserver) -> Iterator[tuple[Finding, bool]]:
    """Yield each address at which a process does not listen, and whether that is wrong in any case."""
    yield from _wrong_ports(homeserver)
    yield from _wrong_old_ports(homeserver)


def _is_wrong_port(process: Process, where: int | str, host: str, listens: Collection[int | str]) -> bool:
    """Whether a process cannot be reached there, whatever is between.

    A proxy, a Service or Docker may lead a port of another host, or a folder with a socket, to where the
    process listens; but not if it listens nowhere, or has another listener there.
    """
    return not listens or where in process.holds or (isinstance(where, int) and host in LOOPBACK)


MAPPED: Final = (
    "nothing, if a proxy, a Service or Docker leads it to where the process listens (a folder with a socket"
    " may have another path in a container); else "
)
"""The beginning of what to do about an address at which a process itself does not listen."""


def _wrong_ports(homeserver: Homeserver) -> Iterator[tuple[Finding, bool]]:
    for at in homeserver.instances:
        process, where = homeserver.process(at.name), at.where
        if process is None or process.listens is None:
            continue
        if isinstance(where, str):
            where = normpath(where)
        if where in [normpath(one) if isinstance(one, str) else one for one in process.listens]:
            for one in _wrong_tls(process, at):
                yield one, True
            continue
        listens = ", ".join(printable(str(one)) for one in process.listens)
        entry = "main" if at.name == MAIN else printable(at.name)
        is_wrong = _is_wrong_port(process, where, at.host, process.listens)
        others = [one for one in homeserver.instances if one.name == at.name and one != at]
        of, file = (f" of {several([*at.in_files])}", at.in_files[0]) if others else ("", "the shared file")
        remedy = (
            f"set instance_map.{entry} to {listens} in {file}"
            if listens
            else _at_held_port(process, where, f"it at instance_map.{entry}")
            or f"add to {process.file} a listener of type http at {printable(str(where))} with the resource"
            " replication"
        )
        yield (
            Finding(
                kind="wrong_port",
                process=at.name,
                why=f"`instance_map`{of} has {printable(str(where))} for {entry}, and {process.file} has"
                f" {f'replication at {listens}' if listens else 'no listener with the resource replication'}"
                + (": requests of other processes to it fail" if is_wrong else ""),
                remedy=remedy if is_wrong else f"{MAPPED}{remedy}",
                cost=RESTART_ALL if listens else RESTART_ONE,
            ),
            is_wrong,
        )


def _at_held_port(process: Process, where: int | str, key: str, *, is_http: bool = True) -> str:
    """What to do where another listener of the process has the port: a second one would not start there."""
    if where not in process.holds:
        return ""
    own = f"give replication a listener of its own, and set {key}"
    if not (is_http and process.holds[where]):
        return f"{own} (what has the one now is of another type)"
    return (
        f"add `replication` to the resources of the listener at {printable(str(where))} in {process.file}, if"
        f" no outsider reaches it; or {own}"
    )


def _wrong_tls(process: Process, at: InstanceEntry) -> Iterator[Finding]:
    """Of TLS at one end. At another host a proxy may take it off."""
    listens, calls, where = at.where in process.listens_tls, at.is_tls, at.where
    if listens == calls or (calls and at.host not in LOOPBACK) or not isinstance(where, int):
        return
    entry = "main" if process.name == MAIN else printable(process.name)
    yield Finding(
        kind="wrong_port",
        process=process.name,
        why=f"the listener of {entry} at {where} speaks {'TLS' if listens else 'no TLS'}, and `instance_map`"
        f" says {'TLS' if calls else 'nothing of TLS'}: requests of other processes to it fail",
        remedy=f"set `tls: {str(listens).lower()}` at instance_map.{entry} in the shared file",
        cost=RESTART_ALL,
    )


def _wrong_old_ports(homeserver: Homeserver) -> Iterator[tuple[Finding, bool]]:
    """Ports of the main process by older keys, at which it does not listen."""
    main = homeserver.process(MAIN)
    if main is None or not main.file or main.listens is None:
        return
    grouped: dict[tuple[str, str, int], list[str]] = {}
    for name, key, host, port in homeserver.old_ports:
        if port not in (main.listens if "http" in key else main.listens_tcp):
            grouped.setdefault((key, host, port), []).append(name)
    for (key, host, port), names in grouped.items():
        is_http = "http" in key
        at = main.listens if is_http else main.listens_tcp
        listens = ", ".join(printable(str(one)) for one in at)
        what = "the resource replication" if is_http else "the type replication"
        is_wrong = _is_wrong_port(main, port, host, at) or port in (*main.listens, *main.listens_tcp)
        remedy = (
            f"set `{key}: {listens}`"
            if listens
            else _at_held_port(main, port, f"`{key}` to its port", is_http=is_http)
            or f"add to `listeners` in {main.file}: {{port: {port}, type: "
            + ("http, resources: [{names: [replication]}]}" if is_http else "replication}")
        )
        yield (
            Finding(
                kind="wrong_port",
                process=names[0] if len(names) == 1 else "",
                count=len(names),
                why=f"`{key}` is {port} for {several([*map(printable, names)])}, and {main.file} has"
                + (f" {what} at {listens}" if listens else f" no listener with {what}")
                + (": the main process is not reached" if is_wrong else ""),
                remedy=remedy if is_wrong else f"{MAPPED}{remedy}",
                cost=RESTART_ALL,
            ),
            is_wrong,
        )


def _shared_ports(homeserver: Homeserver) -> Iterator[Finding]:
    for where, first, second, file in homeserver.shared_ports:
        port = printable(str(where))
        if first == second:
            yield Finding(
                kind="port_twice",
                process=second,
                why=f"{file} has two listeners of {printable(second)} at {port}: the second cannot listen"
                " there, and the process does not start",
                remedy="put their resources into one, if both are of type http; else give one a port, or a"
                " path, of its own",
                cost=RESTART_ONE,
            )
            continue
        yield Finding(
            kind="port_twice",
            process=second,
            why=f"{printable(first)} and {printable(second)} both listen at {port} of one machine: the"
            " one that starts later does not start",
            remedy=f"give the listener in {file} a port of its own, and the proxy that port",
            cost=RESTART_ONE,
        )


# -- what files contradict each other in -----------------------------------------------------------------


def _twice(homeserver: Homeserver) -> Iterator[Finding]:
    for name, files in sorted(homeserver.twice.items()):
        shown, remedy = printable(name), "give each worker a worker_name of its own"
        why = f"{several([*map(printable, files)])} have the name {shown}"
        if files == homeserver.unnamed.get(name):
            calls = f"Synapse calls each by its `worker_app`, {shown}"
            why = f"{_without_name(len(files))}, and {calls}: {several([*map(printable, files)])}"
            remedy += "; if an image or a script adds it, give the files as the processes have them"
        yield Finding(
            kind="name_twice", process=name, count=len(files), why=why, remedy=remedy, cost=RESTART_ONE
        )


def _contradictions(homeserver: Homeserver) -> Iterator[Finding]:
    configured = [one for one in homeserver.processes if one.file]
    marks: dict[str, list[str]] = {}
    for process in configured:
        if process.secret_mark is not None:
            marks.setdefault(process.secret_mark, []).append(process.name)
    if len(marks) > 1:
        groups = sorted(marks.values(), key=len)
        odd = [name for group in groups[:-1] for name in group]
        yield Finding(
            kind="different_secrets",
            process=odd[0] if len(odd) == 1 else "",
            count=len(odd),
            why=f"worker_replication_secret of {', '.join(odd)} is not that of {', '.join(groups[-1])}:"
            " their requests to each other are refused",
            remedy="give all processes the same worker_replication_secret, and restart them",
            cost=RESTART_ALL,
        )
    writers = [{key: of for key, of in one.writers.items() if of != (MAIN,)} for one in configured]
    different = [one for one, of in zip(configured, writers, strict=True) if of != writers[0]]
    if different:
        yield Finding(
            kind="different_writers",
            process=different[0].name if len(different) == 1 else "",
            count=len(different),
            why=f"stream_writers of {several([printable(one.name) for one in different])} is not that of the"
            f" other {counted(len(configured) - len(different), 'process', 'processes')}: a key at the top of"
            " a file replaces the shared one whole",
            remedy=f"remove `stream_writers` from {different[0].file}, and keep it in the shared file",
            cost=RESTART_ONE,
        )
    for process in configured if homeserver.redis is not None else ():
        if not process.has_redis:
            yield Finding(
                kind="no_redis",
                process=process.name,
                why=f"{process.file} switches Redis off for {process.name}: it hears of nothing",
                remedy=f"remove `redis` from {process.file}: a key at the top replaces the shared one",
                cost=RESTART_ONE,
            )


_APART: Final = {
    ALIKE[0]: ": they are not of one homeserver, and hear nothing of each other",
    ALIKE[1]: ": they do not share the data of one homeserver",
}


def _told_otherwise(homeserver: Homeserver) -> Iterator[tuple[Finding, bool]]:
    """Yield what the files of a process say otherwise than most do, and whether that is wrong in any case.

    Of a database or a Redis another address may lead to the same one, as that of a pooler, or a socket.
    """
    for what in ALIKE:
        marks: dict[str, list[Process]] = {}
        for process in homeserver.processes:
            if process.file and what in process.says:
                marks.setdefault(process.says[what], []).append(process)
        if len(marks) < 2:
            continue
        # Of two processes it is not the main one.
        groups = sorted(
            marks.values(), key=lambda group: (len(group), any(one.name == MAIN for one in group))
        )
        odd = [one for group in groups[:-1] for one in group]
        names = [printable(one.name) for one in odd]
        others = counted(sum(map(len, marks.values())) - len(odd), "process", "processes")
        is_address = what in ALIKE[2:]
        if (
            what == ALIKE[1]
            and len({one.says.get(ALIKE[2]) for group in marks.values() for one in group}) > 1
        ):
            continue  # told by the address
        yield (
            Finding(
                kind="different_settings",
                process=odd[0].name if len(odd) == 1 else "",
                count=len(odd),
                why=f"`{what}` of {several(names)} is not that of the other {others}" + _APART.get(what, ""),
                remedy=(
                    "nothing, if it leads to the same one, as by a pooler or a socket; else " * is_address
                )
                + f"remove `{what.partition(':')[0]}` from {odd[0].file}, and keep it in the shared file",
                cost=RESTART_ONE,
            ),
            not is_address,
        )
