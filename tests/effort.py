"""How hypothesis searches: the same examples at every ordinary run, new and many more of them in `make fuzz`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

LONG = "long"
"""The profile of `make fuzz`: 100 times the examples of every other run, and new ones each time."""
STEADY = "steady"
"""The profile of every other run: whether a change passes depends on the change alone, never on the day's draw."""

settings.register_profile(LONG, max_examples=100 * settings.get_profile("default").max_examples, derandomize=False)
settings.register_profile(STEADY, derandomize=True)
settings.load_profile(STEADY)


def effort(share: float = 1.0, steps: int = 50) -> settings:
    """share: of the profile's examples. steps: of a state machine's run."""
    examples = max(1, int(settings.default.max_examples * share))
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet)
