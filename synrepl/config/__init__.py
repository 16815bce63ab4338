"""Everything an operator can choose, declared once.

Flags, keys of the file, help and the manual's table derive from it. The order is default, file, flag: a later
one wins. What makes no sense is a `ConfigError` of one line that says which setting, and what would.
"""

from synrepl.config.setting import Setting
from synrepl.config.settings import Settings, settings, table_for_the_manual
from synrepl.config.suggestion import suggestion
from synrepl.config.validation import is_loopback

__all__ = ["Setting", "Settings", "is_loopback", "settings", "suggestion", "table_for_the_manual"]
