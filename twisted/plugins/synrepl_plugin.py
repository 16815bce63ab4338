"""Tells Twisted that there is a ``twistd synrepl``."""

from twisted.application.service import ServiceMaker

synrepl = ServiceMaker("synrepl", "synrepl.tap", "Serves replication streams to their followers.", "synrepl")
