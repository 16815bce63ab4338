"""Which Synapse this environment holds, and the module that drives it."""

import synapse

NUMBER = synapse.__version__


def module():
    """The stand-ins for this release: `legacy` or `current`."""
    if tuple(int(part) for part in NUMBER.split(".")[:2]) < (1, 13):
        import legacy

        return legacy
    import current

    return current
