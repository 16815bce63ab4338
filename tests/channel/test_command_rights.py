"""Which commands a peer may publish at the RESP port, by the rights of its key."""

from synrepl.base.access import Right
from tests.channel.test_connection import Site
from tests.http import test_command_rights as rights


class PortTests(rights.CommandRightsTests):
    """The same samples."""

    def test_at_the_resp_port(self) -> None:
        """Whoever may publish at all: with the right to write, and all streams."""
        site = Site(*rights.KEYS)
        publishers = {key.name: site.client(key.name) for key in rights.KEYS}
        for key in rights.KEYS[-2:]:
            for run in key.instances or ():
                publishers[key.name].ask("PUBLISH", "hs", f"USER_SYNC {run} @a:hs None start 1")
        site.ingested.clear()
        for key, sample, instance, line in self.samples():
            may_publish = Right.WRITE in key.rights and key.streams is None
            is_allowed = may_publish and rights.may(key, sample, instance)
            with self.subTest(key=key, line=line):
                answer = publishers[key.name].ask("PUBLISH", "hs", line.decode())
                self.assertEqual(":0" if is_allowed else "-NOPERM", answer.split("\r\n")[0].split(" ")[0])
                self.assertEqual([line] if is_allowed else [], site.ingested)
            site.ingested.clear()
