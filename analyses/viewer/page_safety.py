"""How is a page kept to what is ours? Text is escaped, nothing is fetched, and no other style or script counts."""

import base64
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def environment(rooms: Mapping[str, str], filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Templates that escape what they are given, and refuse what they are not.

    Args:
        rooms: by package, the folder in it that has templates.
        filters: by name, what templates call.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in rooms.items()]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters
    return made


def policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """A Content-Security-Policy under which nothing is fetched, and only these styles and scripts count.

    Source: Content Security Policy Level 3 (W3C), whose hashes are of what stands between the tags.
    """
    only = f"style-src {_hashes(styles)}; script-src {_hashes(scripts)}"
    return f"default-src 'none'; img-src data:; {only}; base-uri 'none'; form-action 'none'"


def _hashes(sources: Iterable[str]) -> str:
    digests = (base64.b64encode(sha256(each.encode()).digest()).decode() for each in sources)
    return " ".join(f"'sha256-{each}'" for each in digests)
