"""The live page as one response: markup, style and scripts read from this folder and put into one file.

    page.html   <link rel="stylesheet" href="page.css">           ->  <style>...</style>
                <script src="vendor/uPlot.iife.min.js"></script>  ->  <script>...</script>
                <script type="module" src="main.js"></script>     ->  main.js behind all that it imports
                <!-- vendor/LICENSE.uPlot -->                     ->  <!-- its text -->

A browser asks for nothing else, and runs nothing else: the policy names the hash of each part. Knows no server.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

LINK = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
SCRIPT = re.compile(r'<script( type="module")? src="([^"]+)"></script>')
LICENCE = re.compile(r"<!-- (vendor/\S+) -->")
IMPORT = re.compile(r'^import .*? from "\./([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
FIXED_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def assemble() -> tuple[bytes, dict[str, str]]:
    """The page in UTF-8, and the headers it is sent with."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inlined(tag: str, attributes: str, text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}{attributes}>{text}</{tag}>"

    html = LINK.sub(lambda found: inlined("style", "", _read(found[1])), _read("page.html"))
    html = SCRIPT.sub(lambda found: inlined("script", found[1] or "", _script(found)), html)
    html = LICENCE.sub(lambda found: f"<!--\n{_read(found[1]).strip()}\n-->", html)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {' '.join(hashes['style'])}; script-src {' '.join(hashes['script'])}"
    )
    return html.encode(), {**FIXED_HEADERS, "Content-Security-Policy": policy}


def modules(name: str) -> list[str]:
    """`name` behind the modules that it imports, each once, in the order in which a browser would run them."""
    order: list[str] = []

    def visit(module: str) -> None:
        for needed in IMPORT.findall(_read(module)):
            if needed not in order:
                visit(needed)
        order.append(module)

    visit(name)
    return order


def _script(found: re.Match[str]) -> str:
    """A script as it is, or a module with its imports in one scope, where imports and exports mean nothing."""
    if not found[1]:
        return _read(found[2])
    return "\n".join(EXPORT.sub("", IMPORT.sub("", _read(module))) for module in modules(found[2]))


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
