"""Nets that people train, as usual_families.py lists them, written in the order that its seed gave.

Out: `WRITTEN`, by the names of the list.
"""

from __future__ import annotations

from zoo.libraries import Written, usual_last_denoised, usual_last_own, usual_last_seen, usual_last_texts
from zoo.libraries.usual_denoised import DENOISED
from zoo.libraries.usual_own import OWN
from zoo.libraries.usual_seen import SEEN
from zoo.libraries.usual_texts import TEXTS

LAST: dict[str, Written] = (
    usual_last_texts.TEXTS | usual_last_seen.SEEN | usual_last_denoised.DENOISED | usual_last_own.OWN
)
"""Those that stood last in that order."""
WRITTEN: dict[str, Written] = TEXTS | SEEN | DENOISED | OWN | LAST
