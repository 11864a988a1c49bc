"""Hypothesis measures no time here: a busy machine is not a defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rocketq", deadline=None)
settings.load_profile("rocketq")
