"""How did the heads' patterns change while the model was trained? Small ones of every head, and whole ones that fit."""

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
_BUDGET = 400_000  # characters on a page


@dataclass(frozen=True)
class TrainingSteps:
    """Every head of the first stack over one passage, step by step: `data` holds small pictures of all heads and, by
    head name, whole patterns as from `Attention.packed`."""

    data: Mapping[str, Any]
    ids: Sequence[str] = ()


def training_steps(folder: Path, passage: Passage, model: Model) -> TrainingSteps | None:
    """What the models kept in `folder`/steps look at in a passage; None if none can read it or there are two stacks.

    Of more than 12 steps, 12 evenly spaced ones are shown. If not all whole patterns fit, the firmest heads go first.
    """
    kept = sorted(each for each in folder.glob("steps/*") if each.name.isdecimal())
    if not kept or len(passage.attentions) != 1 or model.tokenizer is None:
        return None
    attention = passage.attentions[0]
    special = len(model.tokenizer.prefix), len(attention.queries) - len(model.tokenizer.suffix)
    text = "".join(attention.queries[special[0] : special[1]])
    steps: dict[int, Attention] = {}
    for number in sorted({*np.linspace(0, len(kept) - 1, min(_MOST, len(kept))).round().astype(int).tolist()}):
        with suppress(InputError):  # still being written, or damaged
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
