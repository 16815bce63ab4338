"""The room of the pipeline: jobs over the streams, on Spark or in one process."""

from synrepl.rooms import Command, Room


class PipelineRoom(Room):
    """Jobs on archives of the streams."""

    name = "pipeline"
    commands = (
        Command(
            "pipeline", "synrepl.pipeline.commands.jobs:pipeline", "Run Spark jobs on the streams.", "Analyze"
        ),
    )
