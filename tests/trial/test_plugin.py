"""`twistd synrepl` and `twist synrepl`, as Twisted finds them. Run by trial."""

import shutil
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, cast

import treq
from twisted.application.service import IService, IServiceMaker
from twisted.application.twist._options import TwistOptions
from twisted.internet import reactor
from twisted.plugin import IPlugin, getPlugins
from twisted.scripts._twistd_unix import ServerOptions
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface.verify import verifyObject

from synrepl.config import Settings
from synrepl.daemon.service import Daemon
from synrepl.tap import Options

LOOPBACK = "tcp:0:interface=127.0.0.1"
GIVEN = ["--server-name", "hs.example", "--listen", LOOPBACK, "--http", LOOPBACK]


def maker() -> Any:
    """What Twisted has of us."""
    (found,) = [one for one in getPlugins(IServiceMaker) if one.tapname == "synrepl"]
    return found


class PluginTests(SynchronousTestCase):
    """The plugin and its options."""

    def test_the_plugin_is_one_of_twisted(self) -> None:
        """`getPlugins` finds it by `IPlugin`, and it makes services."""
        self.assertIn(maker(), list(getPlugins(IPlugin)))
        self.assertTrue(verifyObject(IServiceMaker, maker()))
        self.assertIs(Options, maker().options)

    def test_twistd_and_twist_take_the_same_options(self) -> None:
        """Each of them hands what follows its subcommand to the same class."""
        for options in (ServerOptions(), TwistOptions()):
            options.parseOptions(["synrepl", *GIVEN])

            ours = cast("Any", options).subOptions
            self.assertIsInstance(ours, Options)
            self.assertEqual("hs.example", ours.settings.server_name)
            self.assertEqual((LOOPBACK,), tuple(ours.settings.listen))

    def test_an_option_that_is_mistyped_is_told_with_the_nearest(self) -> None:
        """By both as well: in one line on standard error, and not with every option on standard output."""
        for options in (ServerOptions(), TwistOptions()):
            with redirect_stderr(StringIO()) as said, self.assertRaises(SystemExit) as ended:
                options.parseOptions(["synrepl", "--sever-name", "hs.example"])

            self.assertEqual(1, ended.exception.code)
            self.assertEqual(1, len(said.getvalue().splitlines()))
            self.assertIn("did you mean server-name", said.getvalue())


class DaemonTests(TestCase):
    """The service that it makes, in this reactor."""

    timeout = 60.0

    async def test_the_daemon_starts_serves_and_stops(self) -> None:
        """Nothing of it is left: trial would find a timer, a thread or a socket."""
        home = Path(tempfile.mkdtemp(prefix="synrepl-"))
        self.addCleanup(shutil.rmtree, home)
        options = Options()
        options.parseOptions([*GIVEN, "--database", f"sqlite:{home}/log.db"])
        assert isinstance(options.settings, Settings)
        daemon = Daemon(options.settings, reactor, on_failure=lambda: self.fail("it did not start"))
        self.assertTrue(IService.providedBy(daemon))

        daemon.startService()
        await daemon.ready
        port = cast("Any", daemon.listeners.ports[-1]).getHost().port
        answer = await treq.get(f"http://127.0.0.1:{port}/readyz", persistent=False)
        await answer.content()
        await daemon.stopService()

        self.assertEqual(200, answer.code)
        self.assertEqual([], self.flushLoggedErrors())
