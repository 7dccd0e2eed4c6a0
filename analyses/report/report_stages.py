"""Which stages will a full report go through? It says so before the first, so that each is one of a known number."""

from collections.abc import Collection, Mapping, Sequence

from analyses import experiments as experimenting
from analyses.behaviours import asked_of
from analyses.corpora import Corpus
from analyses.corpora.corpus import serving
from analyses.execution.progress import FIRST_PAGE
from analyses.measures.definitions import Behaviour
from analyses.reading.inputs import Heads
from interp import Model, Transformer


def report_stages(
    model: Model,
    behaviours: Mapping[str, Behaviour],
    corpora: Sequence[Corpus],
    rest: Collection[str],
    *,
    labels: bool,
    experiments: bool,
) -> list[str]:
    """Their names, in order; `rest` are the parts that are made beside the labels. Some may turn out to be needless."""
    readings = [
        [name for name in asked_of(kind, behaviours) if name in each.questions]
        for each in serving({name: each.needs for name, each in behaviours.items()}, corpora)
        for kind in Heads.kinds_of(model)
    ]
    names = list(dict.fromkeys(name for group in readings for name in group))
    hidden = names if isinstance(model, Transformer) and len(model.config.stacks) == 1 else []
    labelling = ["reading with heads that have learnt nothing", *(f"{name}: knocking out" for name in hidden)]
    labelling += ["hiding keys from all heads of a label", *(f"{name}: looking for sets" for name in hidden)]
    return [
        *(f"{', '.join(group)}: reading" for group in readings if group),
        *("minimal pairs", "intervals", "comparing with rules"),
        *([FIRST_PAGE] if labels or experiments or "probes" in rest else []),
        *(labelling if labels else []),
        *("reading sentences", f"the rest of {', '.join(rest)}"),
        *(f"experiments: {name}" for name in experimenting.EXPERIMENTS if experiments),
    ]
