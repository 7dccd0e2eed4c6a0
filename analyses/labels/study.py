"""What labels are read from, and how: what every step of labelling is given."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from analyses.behaviours import OURS
from analyses.execution.shards import Shards
from analyses.measures.definitions import Behaviour
from interp import AnnotatedText, Model

Say = Callable[[str, int], object]  # what is being done, and how often it was


@dataclass(frozen=True)
class Study:
    """The arguments of `analyses.labels.label`; `corpora` and `behaviours` are by name of the behaviour."""

    model: Model
    corpora: Mapping[str, Iterable[AnnotatedText]]
    behaviours: Mapping[str, Behaviour]
    seed: int = 0
    shards: Shards = field(default_factory=Shards)
    say: Say = lambda stage, count: None
    documents: int | None = None
    words: int | None = None
    exact: bool = False

    def shards_of(self, *names: str) -> Shards:
        """Shards of what behaviours of ours say of a corpus; none are kept of a text or a scorer that has no hash."""
        digest = getattr(self.corpora[names[0]], "digest", None)
        has_hash = digest is not None and all(name in OURS for name in names)
        return self.shards.narrow(digest, names) if has_hash else Shards()
