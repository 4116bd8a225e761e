"""Nets that people train, as usual_families.py lists them, written in the order that its seed gave.

Out: `WRITTEN`, by the names of the list; what is missing stood too late in that order to be drawn.
"""

from __future__ import annotations

from zoo.libraries import Written
from zoo.libraries.usual_denoised import DENOISED
from zoo.libraries.usual_own import OWN
from zoo.libraries.usual_seen import SEEN
from zoo.libraries.usual_texts import TEXTS

WRITTEN: dict[str, Written] = TEXTS | SEEN | DENOISED | OWN
