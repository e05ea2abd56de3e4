"""Decorators that make a user's own diagnosis, remedy or sink known to policies."""

from __future__ import annotations

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS


register_diagnosis = DIAGNOSES.register
register_remedy = REMEDIES.register
register_sink = SINKS.register
