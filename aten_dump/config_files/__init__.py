"""Config files: ours as JSON, TOML or YAML, msprobe's config.json, MindSpore's data_dump.json.

In: a file. Out: fields of DumpConfig, and for each key of another tool what became of it (`Translation`).
"""

from .reading import VARIABLES, read_config_file, read_named_fields
from .translation import Translation

__all__ = ["VARIABLES", "Translation", "read_config_file", "read_named_fields"]
