"""The room of the pipeline: jobs over the streams, on Spark or in one process."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.rooms import Room, RoomCommand

if TYPE_CHECKING:
    from synrepl.daemon.parts import DaemonParts


class PipelineRoom(Room):
    """Jobs on archives of the streams, and logs that begin with a snapshot that such a job made."""

    name = "pipeline"
    headings = MappingProxyType({"Log and files": "snapshot"})
    commands = (
        RoomCommand(
            "pipeline", "synrepl.pipeline.commands.jobs:pipeline", "Run Spark jobs on the streams.", "Analyze"
        ),
    )

    def settings_class(self) -> type[Any]:
        from synrepl.pipeline.settings import PipelineSettings

        return PipelineSettings

    def is_wanted(self, settings: Any) -> bool:
        return settings.snapshot is not None

    async def build(self, daemon: "DaemonParts") -> None:
        """Restore the snapshot: nothing of it runs afterwards."""
        try:
            # It needs the pipeline's libraries.
            from synrepl.pipeline.restore import restore
        except ImportError as error:
            from synrepl.errors import ConfigError
            from synrepl.extras import install

            raise ConfigError(f"a snapshot needs pyarrow ({error}): run {install('arrow')}") from error
        await restore(daemon)
