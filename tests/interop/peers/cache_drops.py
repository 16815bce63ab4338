"""What a worker of this release drops from its caches for rows that it receives.

Says ``{"event": "ready", "names": {cache: number of arguments}}``. For each line ``[stream, row]`` on stdin,
with the row as this release sends it, says ``{"event": "answered", "drops": [[cache, key], ...]}``, with a
null key for a whole cache. If the release fails, `drops` is null, and `why` says how.

The store is the class of the release's own worker, with its own code for rows; only its caches are replaced,
by ones that say what they are told, and what it keeps besides caches by ones that say nothing.
"""

import json
import sys

from common import report
from synapse.replication.tcp import streams
from synapse.util.caches.descriptors import _CacheDescriptorBase

try:
    from synapse.app.generic_worker import GenericWorkerServer

    Worker = GenericWorkerServer.DATASTORE_CLASS
except ImportError:
    # Before 1.13 each kind of worker had a program; this one had most of the classes.
    from synapse.app.synchrotron import SynchrotronSlavedStore as Worker

DROPS = []


class Nothing:
    """Takes whatever is asked of it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *args, **kwargs):
        return Nothing()


class Unfilled:
    """The entries of a cache: receipts are dropped only if those who are known to have read are others."""

    def get(self, *args, **kwargs):
        return set()


class Recorder:
    """A cache that says what it is told to drop."""

    cache = Unfilled()

    def __init__(self, name):
        self.name = name

    def invalidate(self, key):
        # Keys of one argument that is a tuple itself are those of packed rows.
        flat = key[0] if len(key) == 1 and isinstance(key[0], (tuple, list)) else key
        DROPS.append([self.name, list(flat)])

    invalidate_many = invalidate_local = invalidate

    def invalidate_all(self):
        DROPS.append([self.name, None])

    clear = invalidate_all

    def invalidate_on_extra_index_local(self, key):
        self.invalidate_all()


class Store(Worker):
    def __init__(self):
        self.external_cached_functions = {}
        self._get_event_cache = Recorder("get_event")
        for name in cached():
            self.__dict__[name] = Recorder(name)

    def __getattr__(self, name):
        # Caches that this release lacks must be missing.
        if name.endswith(("_gen", "_stream_cache", "_ref", "_fetches")):
            return Nothing()
        if name in ("hs", "_instance_name", "database_engine", "db_pool"):
            return Nothing()
        raise AttributeError(name)


def is_cache(found):
    # Methods for many keys at once have no cache of their own.
    return isinstance(found, _CacheDescriptorBase) and not hasattr(found, "cached_method_name")


def cached():
    found = {}
    for name in dir(Worker):
        for owner in Worker.__mro__:
            if name in vars(owner):
                if is_cache(vars(owner)[name]):
                    found[name] = vars(owner)[name]
                break
    return found


def parse(name, row):
    for known in streams.STREAMS_MAP.values():
        if known.NAME == name:
            return known.parse_row(row)
    raise ValueError("no stream " + name)


def main():
    store = Store()
    takes_instance = "instance_name" in Worker.process_replication_rows.__code__.co_varnames
    names = {name: getattr(found, "num_args", len(found.arg_names)) for name, found in cached().items()}
    report("ready", names=names)
    for line in sys.stdin:
        stream, row = json.loads(line)
        del DROPS[:]
        try:
            parsed = [parse(stream, row)]
            if takes_instance:
                store.process_replication_rows(stream, "master", 5, parsed)
            else:
                store.process_replication_rows(stream, 5, parsed)
        except Exception as error:
            report("answered", drops=None, why=repr(error))
        else:
            report("answered", drops=DROPS)


if __name__ == "__main__":
    main()
