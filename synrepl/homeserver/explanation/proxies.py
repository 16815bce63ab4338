"""What a proxy, or a bridge, logs of a process that it asked: which one, and where on the way it failed."""

import re
from typing import Final

from synrepl.homeserver.explanation.hidden_names import HOST, shown_address, with_placeholders
from synrepl.wire.text import printable

_UPSTREAM: Final = re.compile(
    r'upstream: "(?:https?://)?(?P<where>unix:[^":\s]{1,200}|[^"/\s]{1,200})'
    r"|connect\(\) to (?P<socket>unix:[^\s:]{1,200}) failed"
    r"|dial (?:tcp|unix):? (?:lookup |[^\s\">]{1,100}->)?(?P<dialed>[^\s\"]{1,200}?):? "
    r"|[Ss]erver (?P<server>\S{1,200}) (?:is DOWN|failed, reason)"
    r"|(?:disabling worker for|disabled connection for) \((?P<disabled>[^()\s]{1,200})\)"
    r"|backend '?(?P<backend>[^\s']{1,200})'? has no server"
    r"|(?:^|[\s\"])(?P<named>[\w.-]{1,200})\"? could not be resolved"
    r'|host not found in upstream "(?P<unfound>[^"]{1,200})|attempt to connect to (?P<tried>\S{1,200})'
    r"|(?:remote server|returned by|connection to backend:?) (?!returned by)(?P<asked>[^\s/\",()]{1,200})"
    r"|for (?:the )?container \\?['\"]/?(?P<container>[\w.-]{1,100})"
    r"|read tcp [^\s>]{1,100}->(?P<read>[^\s\"]{1,100}?): ",
    re.ASCII,
)
"""The process that a proxy asked: as nginx, programs in Go (Caddy, Traefik), HAProxy and Apache name it."""

_SEE_ADDRESS: Final = (
    "see whether that process runs, and listens at that address and port (for a socket: at that path, and the"
    " proxy's user may use it)"
)
_SEE_LOG: Final = "see the log of that process, and of the system, at that time"
_LOOPBACK: Final = (
    "[::1] is what localhost may mean: if Synapse listens at 127.0.0.1 alone, write 127.0.0.1 into the"
    " proxy's configuration in place of localhost"
)
_CONTAINER: Final = (
    "in a container 127.0.0.1 is that container itself: ask the other one by its name. If the line has a name"
    " too, see which address it has there: getent hosts NAME"
)

_LATE: Final = r"timed? ?out|i/o timeout|timeout awaiting|request timeout"
_LONGER: Final = (
    "a /sync waits as long as its client wants, 30 s and more: proxy_read_timeout must be longer (600s;"
    " Envoy and Istio: timeout: 0s of the route, 15 s if not set; Apache: ProxyTimeout 600; Caddy and"
    " Traefik: no response_header_timeout, or one of 600s)"
)
_BY_PATH: Final = (
    (r"/sync\b|/events\b|native|changes|follow=", ""),
    (
        r"/join\b|/join/|/rooms/[^/\s]{1,300}/join|make_join|send_join|/upgrade\b",
        (
            "to join a large room takes minutes, and goes on in Synapse though the proxy has answered 504:"
            " wait, and look whether the room is there, before it is asked again"
        ),
    ),
    (
        r"/media/|/upload\b",
        (
            "a large file takes long, from another homeserver above all: raise proxy_read_timeout and"
            " proxy_send_timeout for /_matrix/media, and see whether the disk of media is slow"
        ),
    ),
)
"""Requests that take long by themselves: the path, and what to do in place of looking for load."""

_ON_THE_WAY: Final = (
    (
        r"(?:is DOWN|failed), reason: Layer7 wrong status",
        "A check of HAProxy got an answer of {}, with a status that it does not take for well: it runs.",
        (
            "have the check ask a path that answers 200 (Synapse: option httpchk GET /health, which each"
            " listener of type http has; synrepl: /readyz, 503 while it is not ready), with http-check expect"
            " status 200"
        ),
    ),
    (
        r"(?:is DOWN|failed), reason: Layer7 (?:timeout|invalid response)",
        "A check of HAProxy reached {}, and got no answer in time, or none in HTTP.",
        "look at the load of that process; none in HTTP: the port speaks TLS, or is that of another protocol",
    ),
    (
        r"(?:is DOWN|failed), reason: Layer6",
        "A check of HAProxy did not agree on TLS with {}.",
        "take ssl and check-ssl out of the line of that server, unless its port speaks TLS",
    ),
    (
        r"(?:is DOWN|failed), reason: Layer4 timeout",
        "A check of HAProxy got no answer to a connection from {}.",
        "see whether both are in one network, whether a firewall is between, and whether that machine runs",
    ),
    (
        r"(?:is DOWN|failed), reason: Health analyze",
        "HAProxy takes {} for down, as requests to it failed one after the other (observe, error-limit).",
        f"info: in the line says how they failed. {_SEE_ADDRESS}",
    ),
    (
        r"is DOWN|Health check for server",
        "A check of the proxy finds {} down.",
        f"{_SEE_ADDRESS}; the reason is in the line",
    ),
    (
        r"no such host|[Hh]ost not found|server misbehaving|resolved \(\d+: Operation timed out",
        "A proxy passes requests to {}, a name that has no address in its network.",
        (
            "see whether the container of that name runs, and is in the same network as the proxy (docker"
            " network inspect); nginx looks names up at its start: reload it afterwards"
        ),
    ),
    (
        r"dial tcp: lookup [^\"]{1,300}i/o timeout",
        "A proxy asked for the address of {}, and the name server did not answer in time.",
        (
            "see which name server the proxy's container uses (/etc/resolv.conf), and whether it answers:"
            " nslookup NAME there"
        ),
    ),
    (
        r"unable to find the IP address for the container",
        "Traefik finds no address of {} in the network that it uses: it asks it nothing.",
        (
            "have both in one network; if the container is in several, the label traefik.docker.network names"
            " the one to take. A container that has just stopped is found so too"
        ),
    ),
    (
        r"Could not find network named",
        "Traefik is to take {}'s address in a network in which it is not: it takes one in another.",
        (
            "write the network's whole name, as docker network ls shows it (with the project before it,"
            " PROJECT_web), into traefik.docker.network or providers.docker.network, and have both in it: the"
            " address in another is one that Traefik may not reach (504)"
        ),
    ),
    (
        r"backend '?[^\s']{1,200}'? has no server available",
        "HAProxy holds all servers of {} for down, or has none there: it answers 503 until a check succeeds.",
        "its lines before tell which server is DOWN, and why (reason:)",
    ),
    (
        r"no live upstreams",
        (
            "The proxy holds all processes of its upstream {} for down, and asks none for a while: requests"
            " before this one were refused, or took too long."
        ),
        (
            "the lines before tell which, and why. A /sync waits as long as its client wants, 30 s and more:"
            " the proxy must wait longer (nginx: proxy_read_timeout 600s), else it holds a sound process for"
            " down"
        ),
    ),
    (
        r"temporarily disabled",
        "nginx asks {} nothing for a while (fail_timeout, 10 s if not set): a request there failed.",
        (
            "a line of the same moment tells why. A /sync waits as long as its client wants: give the proxy"
            " proxy_read_timeout 600s, else it holds a sound process for down"
        ),
    ),
    (
        r"no healthy upstream",
        "The proxy (Envoy, Istio) knows no process behind that name which it holds for sound.",
        (
            "see whether the pods run and are ready, and whether the service selects them; its health_checks"
            " and outlier_detection tell what it holds for down"
        ),
    ),
    (
        r"disabling worker|disabled connection",
        (
            "Apache asks {} nothing for a while (60 s), as a connection there failed: requests get 503"
            " meanwhile."
        ),
        f"the lines before tell why. {_SEE_ADDRESS}; retry=0 at ProxyPass has Apache try again at once",
    ),
    (
        r"SSL_do_handshake|SSL handshak|gave HTTP response to HTTPS|does not look like a TLS handshake",
        "A proxy, or another program, speaks TLS to {}, which does not, or not as it likes.",
        "ask it by http:// unless that listener of Synapse has tls: true",
    ),
    (
        r"\b13: Permission denied|connect: permission denied",
        "The proxy's user may not use {}.",
        (
            "for a socket: its mode and group, and those of its folder; with SELinux: setsebool"
            " httpd_can_network_connect 1"
        ),
    ),
    (
        (
            r"refused|No such file or directory|connect: no such file|AH01114|AH01079"
            r"|failed to make connection|connect error: 111"
        ),
        "Nothing listens at {}, which a proxy, a bridge or another program asks.",
        _SEE_ADDRESS,
    ),
    (
        (
            r"timed? ?out.{0,40}while connecting|dial tcp\b[^\"]{1,200}(?:i/o timeout|connection timed out)"
            r"|no route to host|network is unreachable|No route to host"
            r"|attempt to connect to \S+ .{0,60}failed"
            r"|reset reason: (?:connection timeout|(?:remote |local )?connection failure)(?!.{0,80}\b111\b)"
        ),
        "A connection to {}, to which a proxy passes requests, could not be made: no answer came from there.",
        (
            "put both in one network (in Docker the container may be in several, of which the proxy takes the"
            " address of another: the label traefik.docker.network, or providers.docker.network, names the"
            " one to take), and see whether a firewall is between. To try it, from the proxy's container:"
            " wget -qO- http://ADDRESS:PORT/health"
        ),
    ),
    (
        (
            r"prematurely closed|incomplete response|reset before headers|request body failed|reset by peer"
            r"|Broken pipe|EOF|AH01102|AH00898|error reading status line"
            r"|reading from remote"
        ),
        "{}, to which a proxy passed a request, closed the connection before its answer was there, or whole.",
        (
            f"it was restarted, killed (memory) or ended the request: {_SEE_LOG}. A few at a restart are"
            " normal; clients ask again. Always for one path: the request itself fails there. Always for all:"
            " that port speaks TLS and the proxy http://, so take the listener with tls: false"
        ),
    ),
    (
        r"invalid chunked response|duplicate header line",
        "The answer of {} is no valid HTTP to nginx, which breaks it off: the client gets it cut, or a 502.",
        (
            "see the log of that process at that time, whether another proxy stands between, which changes"
            " answers. Always for all requests: the port is that of another protocol"
        ),
    ),
    (
        r"too big header|invalid header|no valid HTTP",
        "The answer of {} begins in a way that the proxy does not take.",
        "raise proxy_buffer_size; if the header is invalid: the port is that of another protocol, or of TLS",
    ),
    (
        _LATE,
        "{}, to which a proxy passed a request, did not answer in the time that the proxy waits.",
        (
            "look at the load of that process, and what it waits for (the database: pg_stat_activity): its"
            " log has the request when it ends (Processed request: 75.0sec). What was asked for goes on"
            " there"
        ),
    ),
)
"""What failed between a proxy and a process: a pattern, what it tells of the address, and what to do."""


_FROM_OUTSIDE: Final = (
    "At {}, where other homeservers (or the federation tester) look for this one, nobody answered, or"
    " refused: without a delegation that is the port 8448 of the name."
)
_TO_8448: Final = (
    "either let a proxy with TLS listen at 8448, and let firewall and router pass it on; or delegate:"
    ' https://NAME/.well-known/matrix/server with {"m.server": "HOST:443"}. Cloudflare\'s proxy does not pass'
    " 8448: delegate to 443, or set that name to DNS only"
)
"""What is said of the port of federation, seen from outside."""

_STATE: Final = re.compile(
    r" (?P<server>[\w.~-]{1,100}/(?:[\w.-]{1,100}|<NOSRV>)) (?:-?\d{1,9}/){4}\+?-?\d{1,9}"
    r" (?P<status>-?\d{1,3}) "
    r"\+?\d{1,12} \S{1,200} \S{1,200} (?P<state>[A-Za-z-]{2})[A-Za-z-]{2} ",
    re.ASCII,
)
"""What HAProxy logs of a request: the server that was asked, and how it ended."""

_STATES: Final = (
    (
        "S[CQ]|-C",
        "HAProxy did not reach {}: nothing listens there, or it refused.",
        _SEE_ADDRESS,
    ),
    (
        "sC",
        "HAProxy could not connect to {} in time.",
        "see whether both are in one network, and the load of that process",
    ),
    ("sQ", "HAProxy had no free place at {} in time.", "raise maxconn of that server: each /sync takes one"),
    (
        "sH|sD",
        "{} did not answer in the time that HAProxy waits.",
        (
            "timeout server must be longer than a /sync waits (30 s and more): 600s. Others: look at the load"
            " of that process"
        ),
    ),
    (
        "SH|SD",
        "{} closed the connection before its answer was there, or whole.",
        f"{_SEE_LOG}: it was restarted or killed",
    ),
    (
        "R.",
        "HAProxy had no memory, socket or port left for a connection to {}.",
        "look at maxconn, ulimit -n and ip_local_port_range where HAProxy runs",
    ),
    (
        "PC",
        "HAProxy was at its own limit of sockets, and did not connect to {}.",
        "raise maxconn and ulimit -n of HAProxy: each /sync holds two sockets",
    ),
    (
        "P[HD]",
        "HAProxy did not pass on the answer of {}: no valid HTTP, or forbidden by a rule (http-response).",
        "show errors at HAProxy's stats socket shows what was not valid; else look at its rules",
    ),
    (
        "P.",
        "HAProxy itself refused the request, and asked no process: {}.",
        (
            "400: show errors at HAProxy's stats socket shows what was not valid (a scanner, or TLS at a port"
            " without it). 403: look at its rules (http-request deny)"
        ),
    ),
)
"""How a request ended, by HAProxy's first two letters, and what to do."""

_REFUSED: Final = {"400": "the request is no valid HTTP (400)", "403": "a rule forbids it (403)"}
"""Why HAProxy refuses a request, by the status of its answer."""

_LEFT: Final = re.compile("[Cc][A-Z]")


def told_of_state(text: str) -> tuple[list[str], list[str], bool] | None:
    """Return what HAProxy says of how a request ended, and what to do; None if it ended as it should.

    The last is whether it is no trouble.
    """
    found = _STATE.search(text)
    if found is None:
        return None
    server = printable(found["server"])
    if found["state"].startswith("P") and found["state"] not in ("PC", "PH", "PD"):
        why = _REFUSED.get(found["status"], "by a rule, or a limit of its configuration")
        *_, (_, words, step) = _STATES
        return [words.format(why)], [step], False
    if "<NOSRV>" in server and not _LEFT.match(found["state"]):
        words = f"HAProxy has no server for it: all of {server.partition('/')[0]} are down, or no rule fits."
        return (
            [words],
            ["its lines before tell which server is DOWN, and why; else see where the path is sent"],
            False,
        )
    if found["state"] in ("CR", "cR"):
        words = (
            "Who connected did not send a whole request: checks, scanners and browsers that connect ahead do."
        )
        return [words], [], True
    if _LEFT.match(found["state"]):
        return ["Who asked went away before the answer was there, or whole: common for a /sync."], [], True
    told = next((one for one in _STATES if re.fullmatch(one[0], found["state"])), None)
    if told is None:
        return None
    words = told[1].format(server)
    return [words], [told[2]], False


def told_of_proxy(text: str) -> tuple[list[str], list[str]] | None:
    """Return what is said of a request that a proxy could not pass on, and what to do; None if it is none."""
    text = with_placeholders(text)
    told = next((one for one in _ON_THE_WAY if re.search(one[0], text, re.ASCII)), None)
    if told is None:
        return None
    found = _UPSTREAM.search(text)
    where = found[found.lastgroup or 0].rstrip(":.") if found else "the process"
    where = printable(shown_address(where)) if found else where
    hidden = [_HIDDEN] if where.partition(":")[0] == HOST else []
    if where.endswith(":8448"):
        return [_FROM_OUTSIDE.format(where), *hidden], [_TO_8448]
    words = told[1].format(where)
    words = f"{words[0].upper()}{words[1:]}"
    if told[0] == _LATE:
        return [words, *hidden], _late(text, told[2])
    beside = {"[::1]": _LOOPBACK, "127.0.0.1": _CONTAINER}.get(where.rpartition(":")[0], "")
    advice = [told[2], *([beside] if beside and told[2] == _SEE_ADDRESS else [])]
    return [words, *hidden], advice


_HIDDEN: Final = f"{HOST} is the address that was hidden in the line."


def _late(text: str, otherwise: str) -> list[str]:
    """What to do about an answer that came too late, by what was asked for, as far as the line tells."""
    said = next((said for pattern, said in _BY_PATH if re.search(pattern, text, re.ASCII)), None)
    if said is None:
        return [otherwise] if "/_matrix/" in text else [_LONGER, otherwise]
    return [said] if said else [_LONGER]
