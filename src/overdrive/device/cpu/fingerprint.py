"""A name for the present text of the kernels, kept in every kernel's cache key.

numba's cache looks at the file that holds a kernel, not at the files that write its instructions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

SOURCE = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
