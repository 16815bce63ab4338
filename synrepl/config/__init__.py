"""Settings of the daemon, each declared once, by the part that uses it.

Flags, file keys, help and the manual's table derive from the declaration. A flag overrides the file, the file
overrides the default. An invalid setting raises a one-line `ConfigError` that names the setting or its file.
"""

from synrepl.config.settings import Settings, is_loopback, settings

__all__ = ["Settings", "is_loopback", "settings"]
