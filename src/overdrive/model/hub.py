"""Models by hub id, through huggingface-hub and its cache."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from overdrive.errors import OverdriveError, system_reason
from overdrive.progress import Progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SIGN_SECONDS = 10.0  # between two signs that a download is under way
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model")


def is_hub_id(model: str) -> bool:
    """Whether a name has the form owner/name of a hub id."""
    return _HUB_ID.fullmatch(model) is not None


def fetch(model: str, revision: str, weights: bool, progress: Progress) -> Path:
    """The local folder of a hub model, downloaded as far as it is not cached; the hub library draws its own bars.

    revision: branch, tag or commit, "" for the default. weights: whether the weights are wanted too.
    Raises OverdriveError, one line, when the model or revision is unknown, closed, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    patterns = [*_SMALL_FILES, "*.safetensors"] if weights else list(_SMALL_FILES)
    try:
        folder = _while_saying(
            lambda: progress(f"download {model}", 0, 0),
            lambda: snapshot_download(model, revision=revision or None, allow_patterns=patterns),
        )
        return Path(folder)
    except GatedRepoError:
        raise OverdriveError(f"hub model {model} is gated: accept its terms and log in with `hf auth login`") from None
    except RepositoryNotFoundError:
        raise OverdriveError(f"there is no model {model} on the hub, or it is private") from None
    except RevisionNotFoundError:
        raise OverdriveError(f"hub model {model} has no revision {revision!r}") from None
    # The library lets errors of its HTTP client through, whose classes differ from version to version.
    except Exception as error:
        raise OverdriveError(
            f"cannot fetch {model} from the hub, and it is not in the cache: {system_reason(error)}"
        ) from None


def _while_saying(sign: Callable[[], None], work: Callable[[], str]) -> str:
    """What `work` returns, or raises; meanwhile this thread says again and again that it is under way.

    The hub library does not tell how far it is, but gives up connections on which nothing comes.
    """
    found: Future[str] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="download", daemon=True).start()
    sign()
    while wait([found], _SIGN_SECONDS).not_done:
        sign()
    return found.result()
