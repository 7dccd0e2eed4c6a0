"""How did the heads' patterns change while the model was trained? Every head's, small, and as many whole as fit."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyses.viewer.passages import Attention, Passage, deflated, read
from analyses.viewer.pictures import SHADES, averaged
from analyses.wording.head_names import Place
from interp import InputError, Model
from models import load

_MOST = 12  # steps that are shown
_BUDGET = 400_000  # letters that they take of a page


@dataclass(frozen=True)
class TrainingSteps:
    """Every head of the first stack over one passage, a step after another: `data` holds small pictures of all, and of
    heads by name whole patterns, as `Attention.packed` has them."""

    data: Mapping[str, Any]
    ids: Sequence[str] = ()


def training_steps(folder: Path, passage: Passage, model: Model) -> TrainingSteps | None:
    """What the models kept in `folder`/steps look at in a passage; None where none of them reads it, or of two stacks.

    Of more than 12 steps some are shown, evenly spaced. If not all whole patterns fit, the firmest heads have theirs.
    """
    kept = sorted(each for each in folder.glob("steps/*") if each.name.isdecimal())
    if not kept or len(passage.attentions) != 1 or model.tokenizer is None:
        return None
    attention = passage.attentions[0]
    special = len(model.tokenizer.prefix), len(attention.queries) - len(model.tokenizer.suffix)
    text = "".join(attention.queries[special[0] : special[1]])
    steps: dict[int, Attention] = {}
    for number in sorted({*np.linspace(0, len(kept) - 1, min(_MOST, len(kept))).round().astype(int).tolist()}):
        with suppress(InputError):  # one that is being written, or is damaged
            seen = read(load(str(kept[number])), text).attentions[0]
            if seen.queries == attention.queries and seen.weights.shape == attention.weights.shape:
                steps[int(kept[number].name)] = seen
    pictures = [averaged(each.weights) for each in steps.values()]
    packed = deflated(np.stack(pictures)) if steps else ""
    if not packed or len(packed) > _BUDGET:
        return None
    heads, patterns, room = attention.heads, dict[str, str](), _BUDGET - len(packed)
    places = [*np.ndindex(heads.n_layers, heads.n_heads)]
    for layer, head in sorted(places, key=lambda place: -attention.firmness[place]):
        pattern = deflated(np.concatenate([each.shares(layer, head).ravel() for each in steps.values()]))
        if (room := room - len(pattern)) < 0:
            break
        patterns[f"{layer}.{head}"] = pattern
    names = [Place(heads.stack, heads.attention, *place).named(prefix=False) for place in places]
    data = {"steps": [*steps], "heads": names, "sides": pictures[0].shape[-2:], "shades": SHADES}
    return TrainingSteps(data | {"packed": packed, "patterns": patterns})
