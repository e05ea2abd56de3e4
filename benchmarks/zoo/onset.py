"""Which failing set-ups break within a few steps; in all others the trouble builds up, or is that nothing happens."""

from __future__ import annotations


SUDDEN = frozenset(
    {"F07", "F08", "F09", "F10", "F11", "F12", "F13", "F14", "F15", "F16", "F20", "F38", "F40"}
    | {"XF01", "XF03", "XF09", "XF10", "XF18"}
)
