"""What the peer programs share: reporting, watching a protocol, being told what to do.

Runs inside the environments of old Synapse releases, on Python 3.7 and later.
"""

import json
import sys
import threading

import attr
from twisted.internet import reactor


def report(event, **fields):
    """Say on stdout that something happened: one JSON object, one line."""
    fields["event"] = event
    sys.stdout.write(json.dumps(plain(fields)) + "\n")
    sys.stdout.flush()


def plain(value):
    """The same value in JSON's types; a parsed row becomes an object with its fields."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if attr.has(type(value)):
        return {field.name: plain(getattr(value, field.name)) for field in attr.fields(type(value))}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(inner) for inner in value)
    return repr(value)


def arguments(command):
    """The fields of a command, whichever way its release keeps them."""
    if getattr(command, "__dict__", None):
        return dict(command.__dict__)
    return {name: getattr(command, name) for name in getattr(type(command), "__slots__", ())}


class Section:
    """A part of a configuration: whatever it was given."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Bystander:
    """Stands where a collaborator would: any method may be called, is reported, and gives `answer()`."""

    def __init__(self, name, answer=lambda: None, quiet=False):
        self._name = name
        self._answer = answer
        self._quiet = quiet

    def __getattr__(self, method):
        if method.startswith("__"):
            raise AttributeError(method)
        return _Method(self, method)


class _Method:
    def __init__(self, owner, name):
        self._owner = owner
        self._name = name

    def __call__(self, *args, **kwargs):
        if not self._owner._quiet:
            report("call", of=self._owner._name, method=self._name, args=args, kwargs=kwargs)
        return self._owner._answer()

    def invalidate(self, keys):
        """Cached methods of a store have this."""
        report("call", of=self._owner._name, method=self._name + ".invalidate", args=keys, kwargs={})


def watch(protocol):
    """Report what passes through a protocol that the release's own factory built."""
    made, lost = protocol.connectionMade, protocol.connectionLost
    handle, send_error = protocol.handle_command, protocol.send_error

    def connection_made():
        report("connected", connection=protocol.conn_id)
        made()

    def connection_lost(reason):
        report("connection_lost", connection=protocol.conn_id, reason=reason.getErrorMessage())
        lost(reason)

    def handle_command(command):
        report("command", connection=protocol.conn_id, name=command.NAME, args=arguments(command))
        return handle(command)

    def say_error(text, *args):
        report("send_error", connection=protocol.conn_id, text=text % args if args else text)
        return send_error(text, *args)

    protocol.connectionMade, protocol.connectionLost = connection_made, connection_lost
    protocol.handle_command, protocol.send_error = handle_command, say_error
    return protocol


def command_of(commands, line):
    """A wire line as the release's own command, so that a peer says only what its release can say."""
    name, _, rest = line.partition(" ")
    return commands.COMMAND_MAP[name].from_line(rest)


def take_orders(obey):
    """Call ``obey(line)`` for each line of stdin, in the reactor. The end of stdin means nothing.

    A thread reads: Twisted's stdio would make stdout non-blocking too, and then a full pipe loses reports.
    """

    def do(text):
        try:
            obey(text)
        except Exception as error:
            report("trouble", order=text, error=repr(error))

    def read():
        for line in sys.stdin:
            if line.strip():
                reactor.callFromThread(do, line.strip())

    thread = threading.Thread(target=read)
    thread.daemon = True
    thread.start()
