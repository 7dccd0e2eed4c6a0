"""Does the model need what a head attends to? Every label's effect on its own items, for every head.

At the rows that a label claims, a head's claimed keys are hidden; the effect is the drop in the log-probability of the
text's own next token, less that of hiding other keys at about the same distance (`analyses.claims`).
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from analyses import part_of_speech
from analyses.claims import antecedent_looks, claim_with_control, position_looks, relation_looks, tag_looks
from analyses.position import SHORTEST_REPEAT, repeat_length, repeated
from analyses.windows import Progress, Window, windows
from interp import AnnotatedText, InputError, Transformer
from interp.patching.knockout import Claim, knock_out
from interp.patterns import Totals, group_of
from interp.patterns.totals import N_GROUPS
from interp.statistics import benjamini_hochberg, estimate
from interp.tokens import TokenBatch

KNOCKOUT_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "corpus"),
    *("drop", "control", "effect", "ci_low", "ci_high", "p", "q", "n"),
]
BEHAVIOURS = ("position", "part-of-speech", "coreference")
_REPEATS = 16  # sequences on which induction is knocked out
_TEXTS = 40  # read by default: documents, not rows, make intervals narrow


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    behaviours: Sequence[str] = BEHAVIOURS,
    texts: int = _TEXTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row a head and measure: what hiding its claimed keys costs the text's next token, in nats a row.

    `drop` is the mean over the claimed rows, `control` that of hiding other keys, `effect` their difference, with a 95%
    interval over documents and a one-sided p for effect > 0; `q` is over all rows. `n` counts rows.

    Args:
        model: a causal transformer with tokenizer and output layer.
        corpus: texts; each measure reads those that have the annotation it needs.
        behaviours: whose measures.
        texts: how many to read.
        seed: of the control keys and intervals.
        progress: called with the number of texts read.

    Raises:
        InputError: a model without output layer, tokenizer or causal attention; no text, or no row claimed in any.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus")
    counts: Counter[str] = Counter()
    n_heads, rng = model.config.n_layers * model.config.n_heads, random.Random(seed)
    names = [pair for pair in _measures() if pair[0] in behaviours]
    drops, controls = (Totals.empty(n_heads, len(names)) for _ in range(2))
    if ("position", "induction") in names:
        _add_induction(model, rng, seed, names.index(("position", "induction")), drops, controls)
    for number, text in enumerate(_first(corpus, texts), 1):
        for window in windows(text, model.tokenizer, model.config.n_ctx, counts):
            _add(model, window, rng, names, drops, controls)
        counts["texts"] += 1
        if progress is not None:
            progress(number)
    if not counts["texts"]:
        raise InputError("the corpus holds no text: expected at least one")
    if not drops.rows.any():
        raise InputError("no row of this corpus is claimed by any measure: expected texts of at least three tokens")
    table = _table(model, names, drops, controls, seed).assign(corpus=getattr(corpus, "name", "texts"))
    table = table.reindex(columns=KNOCKOUT_COLUMNS)
    table.attrs = {"counts": dict(counts)}
    return table


def _first(corpus: Iterable[AnnotatedText], count: int) -> Iterator[AnnotatedText]:
    for number, text in enumerate(corpus):
        if number == count:
            return
        yield text


def _measures() -> list[tuple[str, str]]:
    """Behaviour and measure of all that is claimed."""
    offsets = [f"offset:{offset}" for offset in (-2, -3, -4, -5)]
    position = ["previous-token", *offsets, "first-token", "duplicate-token", "induction"]
    ways = ("dependent->head", "head->dependent")
    grammar = [f"relation:{name}:{way}" for name in part_of_speech.RELATIONS for way in ways]
    grammar += [f"tag:{x}->{y}" for x, y in part_of_speech.TAG_PAIRS]
    named = {"position": position, "part-of-speech": grammar, "coreference": ["antecedent", "antecedent:named"]}
    return [(behaviour, name) for behaviour, own in named.items() for name in own]


def _add(
    model: Transformer,
    window: Window,
    rng: random.Random,
    names: Sequence[tuple[str, str]],
    drops: Totals,
    controls: Totals,
) -> None:
    """One window's claims, hidden from every head."""
    looks = {
        **position_looks(window),
        **relation_looks(window, part_of_speech.RELATIONS),
        **tag_looks(window, part_of_speech.TAG_PAIRS),
        **antecedent_looks(window),
    }
    found: list[tuple[int, Claim, Claim]] = []
    for column, (behaviour, name) in enumerate(names):
        pair = claim_with_control(window, 0, looks.get(name, {}), rng, at_distance=behaviour != "position")
        if pair is not None:
            found.append((column, *pair))
    if not found:
        return
    claims = [claim for _, *pair in found for claim in pair]
    effects = knock_out(model, TokenBatch.from_rows([window.ids]), claims).flatten(1).double()  # claim head
    group = torch.tensor([group_of(window.text.document)])
    scores, others, rows = (torch.zeros(1, effects.shape[1], len(names), dtype=torch.float64) for _ in range(3))
    for at, (column, claim, _) in enumerate(found):
        scores[0, :, column], others[0, :, column] = effects[2 * at].cpu(), effects[2 * at + 1].cpu()
        rows[0, :, column] = len(claim.queries)
    drops.add(group, scores, rows)
    controls.add(group, others, rows)


def _add_induction(
    model: Transformer, rng: random.Random, seed: int, column: int, drops: Totals, controls: Totals
) -> None:
    """Random tokens and their repeat, as `position` measures induction; each sequence is a document of its own."""
    length = repeat_length(model)
    if length < SHORTEST_REPEAT:
        return
    ids = repeated(model, length, _REPEATS, seed).to(model.device)
    start = ids.shape[1] - 2 * length
    claims: list[Claim] = []
    for prompt in range(len(ids)):
        rows = range(start + length, ids.shape[1] - 1)
        keys, others = (torch.zeros(len(rows), ids.shape[1], dtype=torch.bool) for _ in range(2))
        for at, row in enumerate(rows):
            claimed = row - (length - 1)
            keys[at, claimed] = True
            others[at, rng.choice([key for key in range(start, row + 1) if key != claimed])] = True
        claims += [Claim(prompt, torch.tensor([*rows]), each) for each in (keys, others)]
    effects = knock_out(model, ids, claims).flatten(1).double().cpu()  # claim and control in turn
    scores, rows = torch.zeros(2, len(ids), *drops.scores.shape[1:], dtype=torch.float64)
    rows[..., column] = length - 1
    groups = torch.arange(len(ids)) % N_GROUPS
    for totals, own in ((drops, effects[0::2]), (controls, effects[1::2])):
        scores[..., column] = own
        totals.add(groups, scores, rows)


def _table(
    model: Transformer, names: Sequence[tuple[str, str]], drops: Totals, controls: Totals, seed: int
) -> pd.DataFrame:
    parts = [part.numpy().reshape(part.shape[0], -1) for part in (drops.scores, drops.weights)]
    parts += [part.numpy().reshape(part.shape[0], -1) for part in (controls.scores, controls.weights)]
    found = estimate(*parts, seed=seed)
    shape = model.config.n_layers, model.config.n_heads, len(names)
    layer, head, column = np.unravel_index(np.arange(np.prod(shape)), shape)
    (stack,) = model.config.stacks
    table = pd.DataFrame(
        {
            "stack": stack,
            "attention": "self",
            "layer": layer,
            "head": head,
            "behaviour": [names[at][0] for at in column],
            "measure": [names[at][1] for at in column],
            "drop": found.value,
            "control": found.baseline,
            "effect": found.gain,
            "ci_low": found.low,
            "ci_high": found.high,
            "p": found.p,
            "n": drops.rows.sum(0).numpy().reshape(-1).round().astype(int),
        }
    )
    table = table.loc[table["n"] > 0].reset_index(drop=True)
    return table.assign(q=benjamini_hochberg(table["p"].to_numpy(dtype=float)))
