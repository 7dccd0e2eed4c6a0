"""What may each head be called? Labels with attention evidence, causal evidence, a baseline, an interval and a rate.

Labels are chosen on one half of the documents and reported on the other. A head is a candidate where, on the choosing
half, it shows a measure (`analyses.findings`) by more than any head of three untrained models does, or where hiding
the measure's claimed keys costs the next token (`analyses.knockouts`). On the reporting half each candidate gets

    both        attention and effect hold: Benjamini-Hochberg on the larger of their two p, over all candidates
    attention   it attends, and hiding what it attends to has no effect that could be told from chance
    effect      hiding costs the next token, though attention does not stand out from its baseline
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from analyses import coreference, knockouts, part_of_speech, position
from analyses.findings import DISCOVERY, NOTABLE, RANKED, notable, unit
from interp import AnnotatedText, InputError, Transformer
from interp.initialise import untrained
from interp.patterns import group_of
from interp.statistics import benjamini_hochberg

LABEL_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "label", "evidence", "gain", "gain_low", "gain_high"),
    *("effect", "effect_low", "effect_high", "p_attention", "p_effect", "q", "agreement", "n"),
]
MODULES: dict[str, Any] = {module.BEHAVIOUR: module for module in (position, part_of_speech, coreference)}
_NO_LABEL = ("positional-head", "antecedent-mass", "antecedent-mass:named", "antecedent:named")  # other labels say them
_UNTRAINED = 3
_KEY = ["stack", "attention", "layer", "head", "behaviour", "measure"]


@dataclass(frozen=True)
class Half:
    """The documents of a corpus that choose (0) or report (1): told by their names, the same in every run."""

    corpus: Iterable[AnnotatedText]
    which: int
    most: int | None = None  # texts

    def __iter__(self) -> Iterator[AnnotatedText]:
        count = 0
        for text in self.corpus:
            if group_of(text.document) % 2 == self.which and (self.most is None or count < self.most):
                count += 1
                yield text


def label(
    model: Transformer,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    *,
    texts: int = 40,
    seed: int = 0,
    progress: Callable[[str, int], object] | None = None,
) -> pd.DataFrame:
    """The rows of `tables/labels`: one a head and label, all that hold on the reporting half.

    Gains are over the strictest baseline, effects in nats of the text's next token a claimed row; intervals are at 95%
    over documents. `q` is over all candidates: of `max(p_attention, p_effect)` for `both`, else of the one p. A
    measure without claims of its own (`self`) has no effect. `agreement` is the rank correlation, over all heads, of
    gain and effect on the reporting half.

    Args:
        model: a transformer with a tokenizer.
        corpora: by behaviour (`position`, `part-of-speech`, `coreference`), a corpus that can be read again and again.
        texts: documents of each half that knock-outs and untrained models read.
        seed: of everything random.
        progress: called with what is being done, and how often it was.

    `attrs["left_out"]` says, by behaviour, why one could not be labelled.

    Raises:
        InputError: an unknown behaviour.
    """
    if unknown := corpora.keys() - MODULES.keys():
        raise InputError(f"no behaviour {', '.join(sorted(unknown))}: expected some of {', '.join(MODULES)}")
    say = progress or (lambda stage, count: None)
    tables, left_out = [], {}
    for behaviour, corpus in corpora.items():
        try:
            tables.append(_evidence(model, behaviour, corpus, texts, seed, say))
        except InputError as error:
            left_out[behaviour] = str(error)
    table = _judged(pd.concat(tables, ignore_index=True)) if tables else pd.DataFrame(columns=LABEL_COLUMNS)
    table.attrs = {"left_out": left_out}
    return table


def _evidence(
    model: Transformer,
    behaviour: str,
    corpus: Iterable[AnnotatedText],
    texts: int,
    seed: int,
    say: Callable[[str, int], object],
) -> pd.DataFrame:
    """The candidates of one behaviour, with what the reporting half says of each."""
    module = MODULES[behaviour]
    say(f"{behaviour}: choosing", 0)
    choosing = module.measure(model, Half(corpus, 0), seed=seed)
    bars = [
        module.measure(untrained(model, seed + number), Half(corpus, 0, texts), seed=seed)
        for number in range(_UNTRAINED)
    ]
    say(f"{behaviour}: reporting", 0)
    reporting = module.measure(model, Half(corpus, 1), seed=seed + 1)
    effects = [_effects(model, behaviour, Half(corpus, which), texts, seed + which) for which in (0, 1)]
    attends = _above(notable(choosing), pd.concat(bars))
    moves = effects[0].loc[(effects[0]["q"] < DISCOVERY) & (effects[0]["effect"] > 0)]
    chosen = _chosen(attends, moves)
    kept = _columns(reporting.loc[reporting["sink"] == "kept"], "gain", "attention", "n")
    both = kept.merge(_columns(effects[1], "effect", "effect"), on=_KEY, how="left")
    agreement = {name: _agreement(rows) for name, rows in both.groupby("measure")}
    return chosen.merge(both, on=_KEY, how="inner").assign(agreement=lambda rows: rows["measure"].map(agreement))


def _chosen(attends: pd.DataFrame, moves: pd.DataFrame) -> pd.DataFrame:
    """Heads and measures that either chose, and which did."""
    rows = pd.concat([attends[_KEY].assign(attends=True, moves=False), moves[_KEY].assign(attends=False, moves=True)])
    fit = [name not in _NO_LABEL and unit(name) in RANKED for name in rows["measure"]]
    return rows.loc[np.array(fit, dtype=bool)].groupby(_KEY, sort=False, as_index=False).max()


def _columns(rows: pd.DataFrame, value: str, evidence: str, *more: str) -> pd.DataFrame:
    """A table's value, interval and p under the names that labels give them."""
    named = {"ci_low": f"{value}_low", "ci_high": f"{value}_high", "p": f"p_{evidence}"}
    return pd.DataFrame({named.get(name, name): rows[name] for name in (*_KEY, value, *named, *more)})


def _effects(
    model: Transformer, behaviour: str, corpus: Iterable[AnnotatedText], texts: int, seed: int
) -> pd.DataFrame:
    """The knock-outs of one behaviour's measures; none for a model whose next token cannot be read."""
    if model.output is None or not model.config.last.causal:
        return pd.DataFrame(columns=knockouts.KNOCKOUT_COLUMNS)
    return knockouts.measure(model, corpus, behaviours=[behaviour], texts=texts, seed=seed)


def _above(found: pd.DataFrame, bars: pd.DataFrame) -> pd.DataFrame:
    """Rows whose gain is larger than that of any untrained head in the same measure."""
    bar = bars.loc[bars["sink"] == "kept"].groupby("measure")["gain"].max().to_dict()
    least = np.array([bar.get(name, 0.0) for name in found["measure"]], dtype=float)
    return found.loc[found["gain"].to_numpy(dtype=float) > least]


def _agreement(rows: pd.DataFrame) -> float:
    known = rows[["gain", "effect"]].astype(float).dropna()
    if len(known) < 3 or np.ptp(known.to_numpy(), axis=0).min() == 0:
        return float("nan")
    return float(np.asarray(tuple(spearmanr(known["gain"], known["effect"])))[0])


def _judged(candidates: pd.DataFrame) -> pd.DataFrame:
    """Which candidates hold on the reporting half, and by what evidence."""
    rows = candidates.copy()
    attention, effect = (rows[name].astype(float).fillna(1.0).to_numpy() for name in ("p_attention", "p_effect"))
    q = {
        "both": benjamini_hochberg(np.maximum(attention, effect)),
        "attention": benjamini_hochberg(attention),
        "effect": benjamini_hochberg(effect),
    }
    attends = (
        rows["attends"].to_numpy(dtype=bool) & (rows["gain"] >= NOTABLE).to_numpy() & (rows["gain_low"] > 0).to_numpy()
    )
    moves = (rows["effect"].astype(float) > 0).to_numpy()
    holds = {"both": attends & moves, "attention": attends, "effect": rows["moves"].to_numpy(dtype=bool) & moves}
    rows["evidence"], rows["q"] = "", np.nan
    for evidence in ("both", "attention", "effect"):  # the strongest that holds
        new = holds[evidence] & (q[evidence] < DISCOVERY) & (rows["evidence"] == "").to_numpy()
        rows.loc[new, "evidence"], rows.loc[new, "q"] = evidence, q[evidence][new]
    rows = rows.loc[rows["evidence"] != ""].rename(columns={"measure": "label"})
    return rows.reindex(columns=LABEL_COLUMNS).sort_values(["behaviour", "layer", "head", "label"], ignore_index=True)
