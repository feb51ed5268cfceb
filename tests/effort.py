"""How long a hypothesis test searches: a share of the examples of a profile, of which `make fuzz` has a longer one."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

LONG = "long"
"""The profile of `make fuzz`: 100 times the examples of every other run."""

settings.register_profile(LONG, max_examples=100 * settings.get_profile("default").max_examples)


def effort(share: float = 1.0, steps: int = 50) -> settings:
    """share: of the profile's examples. steps: of a state machine's run."""
    examples = max(1, int(settings.default.max_examples * share))
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet)
