"""Every test here runs once for each release that is there."""

import pytest

from tests.interop.harness import asked_for, peer_python


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_release(name): what the other releases have no means for")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only_release")
        releases = [release for release in asked_for() if only is None or release in only.args]
        metafunc.parametrize("release", releases)


@pytest.fixture(autouse=True)
def _release_is_there(request: pytest.FixtureRequest) -> None:
    release = request.node.callspec.params.get("release") if hasattr(request.node, "callspec") else None
    if release is not None and not peer_python(release).exists():
        pytest.skip(
            f"no Synapse of release {release!r} at {peer_python(release)}; run scripts/interop {release}"
        )
