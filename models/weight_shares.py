"""Which weights does a wrapped model have in common with the one that it was made from, and why are others copies?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tensor_files import folded

if TYPE_CHECKING:
    import pandas as pd

_UNITS = ("kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Share:
    """One parameter."""

    parameter: str  # ours
    made_of: tuple[str, ...]  # the tensors that it is or was copied from
    n_bytes: int
    why_copied: str = ""  # empty where it is shared

    @property
    def shared(self) -> bool:
        """Whether a change of one shows in the other."""
        return not self.why_copied


@dataclass(frozen=True, repr=False)
class Shares:
    """What a wrapped model shares with what it was made from. Parameters that are one are counted once.

    `passed_over` are tensors that nothing was made of: buffers of a module that its table of names does not name.
    """

    parameters: tuple[Share, ...]
    passed_over: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights that both models use."""
        return sum(each.n_bytes for each in self.parameters if each.shared)

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that were copied: what the wrapped model takes of its own."""
        return sum(each.n_bytes for each in self.parameters if not each.shared)

    @property
    def copied(self) -> float:
        """Copied bytes as a part of all."""
        return self.copied_bytes / max(1, self.copied_bytes + self.shared_bytes)

    def table(self) -> "pd.DataFrame":
        """One row a parameter: `parameter, made_of, bytes, shared, why_copied`."""
        import pandas as pd  # noqa: PLC0415 (only who asks for a table waits for it)

        rows = [
            (share.parameter, ", ".join(share.made_of), share.n_bytes, share.shared, share.why_copied)
            for share in self.parameters
        ]
        return pd.DataFrame(rows, columns=["parameter", "made_of", "bytes", "shared", "why_copied"])

    def __repr__(self) -> str:
        total = self.shared_bytes + self.copied_bytes
        lines = [
            f"shared {_size(self.shared_bytes)} of {_size(total)} ({1 - self.copied:.1%}), "
            f"copied {_size(self.copied_bytes)} ({self.copied:.1%})"
        ]
        reasons: dict[str, list[Share]] = {}
        for each in self.parameters:
            if not each.shared:
                reasons.setdefault(each.why_copied, []).append(each)
        for why, those in reasons.items():
            size = _size(sum(each.n_bytes for each in those))
            lines.append(f"  copied {size}, {why}: {folded(each.parameter for each in those)}")
        if self.passed_over:
            lines.append(f"  not read, as no name speaks of these buffers: {folded(self.passed_over)}")
        return "\n".join(lines)


def _size(n_bytes: int) -> str:
    """In the largest unit of which there is one at least, three figures."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    size, unit = float(n_bytes), 0
    while size >= 999.5 and unit < len(_UNITS):
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit - 1]}"
