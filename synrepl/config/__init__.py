"""Settings of the daemon, each declared once.

Flags, file keys, help and the manual's table derive from the declaration. A flag overrides the file, the file
overrides the default. An invalid setting raises a one-line `ConfigError` that names the setting and a valid
value.
"""

from synrepl.config.settings import Settings, is_loopback, settings

__all__ = ["Settings", "is_loopback", "settings"]
