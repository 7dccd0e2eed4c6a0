"""What each `interp` command takes and does; `analyses.cli.app` puts them together."""

import shlex
from collections.abc import Sequence

COLUMNS = 80  # of a terminal


def command_lines(words: Sequence[str], indent: int = 2) -> str:
    """A shell command in terminal lines that end in a backslash; an option stays with its value."""
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + indent + 3 > COLUMNS:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}"
    return f" \\\n{' ' * indent}".join(lines)
