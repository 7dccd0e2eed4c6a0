"""How did the small pictures of the heads change while the model was trained? One a head at each kept step."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyses.viewer.passages import Passage, deflated, read
from analyses.viewer.pictures import SHADES, averaged
from analyses.wording.head_names import Place
from interp import InputError, Model
from models import load

_MOST = 12  # steps that are shown
_BUDGET = 400_000  # letters that they take of a page


@dataclass(frozen=True)
class TrainingSteps:
    """Pictures of every head of the first stack over one passage: `data` holds them packed, a step after another."""

    data: Mapping[str, Any]
    ids: Sequence[str] = ()


def training_steps(folder: Path, passage: Passage, model: Model) -> TrainingSteps | None:
    """What the models kept in `folder`/steps look at in a passage; None where none of them reads it, or of two stacks.

    Of more than 12 steps some are shown, evenly spaced.
    """
    kept = sorted(each for each in folder.glob("steps/*") if each.name.isdecimal())
    if not kept or len(passage.attentions) != 1 or model.tokenizer is None:
        return None
    attention = passage.attentions[0]
    special = len(model.tokenizer.prefix), len(attention.queries) - len(model.tokenizer.suffix)
    text = "".join(attention.queries[special[0] : special[1]])
    pictures: dict[int, np.ndarray] = {}
    for number in sorted({*np.linspace(0, len(kept) - 1, min(_MOST, len(kept))).round().astype(int).tolist()}):
        with suppress(InputError):  # one that is being written, or is damaged
            seen = read(load(str(kept[number])), text).attentions[0]
            if seen.queries == attention.queries and seen.weights.shape == attention.weights.shape:
                pictures[int(kept[number].name)] = averaged(seen.weights).clip(max=255)
    packed = deflated(np.stack([*pictures.values()])) if pictures else ""
    if not packed or len(packed) > _BUDGET:
        return None
    heads = attention.heads
    places = np.ndindex(heads.n_layers, heads.n_heads)
    names = [Place(heads.stack, heads.attention, *place).named(prefix=False) for place in places]
    sides = next(iter(pictures.values())).shape[-2:]
    return TrainingSteps({"steps": [*pictures], "heads": names, "sides": sides, "shades": SHADES, "packed": packed})
