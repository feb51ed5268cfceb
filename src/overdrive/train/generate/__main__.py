"""`python -m overdrive.train.generate MODEL --prompts FILE --out FOLDER`: answers alone, without training on them.

Needs none of the server's packages when it runs on CUDA.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.train.generate.recipe import Budget, Recipe


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m overdrive.train.generate", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines: prompt, messages or turns in each")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the dataset; continued if it is not finished"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop asking after this time")
    parser.add_argument("--tokens", type=int, default=0, help="stop asking after this many answer tokens")
    parser.add_argument("--rows", type=int, default=0, help="answers at once")
    parser.add_argument("--exclude", type=Path, nargs="*", default=(), help="texts that must not be trained on")
    recipe = parser.add_argument_group("recipe")
    for field in fields(Recipe):
        kind = type(field.default)
        name = f"--{field.name.replace('_', '-')}"
        if kind is tuple:
            recipe.add_argument(name, type=float, nargs=2, default=field.default, metavar=("LOW", "HIGH"))
        else:
            recipe.add_argument(name, type=kind, default=field.default)
    return parser


def main() -> None:
    """Entry point. A person's mistake is one line on stderr and exit code 1."""
    given = vars(_parser().parse_args())
    values = {field.name: given[field.name] for field in fields(Recipe)}
    chosen: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
    try:
        from overdrive.train.generate.folder import write_answers

        recipe, budget = Recipe(**chosen), Budget(minutes=given["minutes"], tokens=given["tokens"])
        places = {name: given[name] for name in ("device", "rows", "exclude")}
        write_answers(given["model"], given["prompts"], given["out"], recipe=recipe, budget=budget, **places)
    except OverdriveError as error:
        print(f"overdrive: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
