"""`python -m overdrive.train eagle3 ...`: the same as `overdrive train eagle3 ...`."""

from __future__ import annotations

from overdrive.cli import report, train

with report():
    train(exit_on_error=False, print_error=False)
