"""The promises that only real processes can keep: through kills, stopped readers, backlogs and full disks.

Small by default. With ``SYNREPL_LONG=1`` in the environment the sizes are those of the promise.
"""
