"""What Triton's interpreter needs to run the kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.device.cuda.devices import INTERPRETED


@pytest.fixture(autouse=True)
def loop_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 interprets a loop's bound as int(array of one), which NumPy 2.5 refuses."""
    if not INTERPRETED:
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
