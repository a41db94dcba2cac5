"""Formats and classes of other tools: msprobe, MindSpore's dump, apex. A folder each.

In: their dumps, configs and scripts. Out: records, fields of DumpConfig, a `DumpMode` that is driven as theirs.
Nothing imports it but `aten_dump.compat`; `aten_dump.extensions` names what is here, as other packages name theirs.
"""
