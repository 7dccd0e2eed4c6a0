"""Does a model know a contrast, or only prefer one side of it?

An item is right if the good sentence is likelier, and half right if both are equally likely; SyntaxGym's are right if
the prediction holds. Rivals go through the same scorer on the model's own tokens: length (the shorter sentence is
right), and a unigram and a 5-gram model of a given text.

A model that always prefers `who` to `that` is right about every item whose answer is `who`. So a contrast has poles:
classes of answers (equally many items for both directions of the same two words), sister paradigms, or the claims of a
SyntaxGym suite. It is `passed` if every pole's interval is above one half and the mean over poles is clearly above the
strictest rival's. It is a `bias` if one pole is above one half and another below; else `not shown`. Without two poles
of eight items each it is `not testable`. Intervals are at 95%, over groups of items if there are eight, else items.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analyses.execution import lots
from analyses.suites.items import BAD, CRITICAL, GOOD, Item, Paradigm, Suite
from analyses.suites.ngrams import KneserNey
from analyses.suites.predictions import ALL_REGIONS, Region
from analyses.suites.sentence_scores import TokenScores, rival_scores, token_ids, token_scores
from interp import AnnotatedText, InputError, Model
from interp.statistics import FEWEST_CLUSTERS, contrast

RIVALS = {"length": 0, "unigram": 1, "five_gram": 5}  # order of the n-grams; 0: none
PASSED, BIAS, NOT_SHOWN, NOT_TESTABLE = "passed", "bias", "not shown", "not testable"
_SHARES = ("right_per_token", "right_critical", *RIVALS)
_FEWEST = 8  # items per pole
Scores = Mapping[str, TokenScores]


def measure(
    model: Model,
    suite: Suite,
    text: Iterable[str | AnnotatedText] | None = None,
    *,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """One row per pair; for SyntaxGym, one per item and prediction, and one per claim that a prediction joins.

    `right` is 1, 0 or one half, and NaN if a region has no token of its own; `length`, `unigram` and `five_gram` are
    the same for the rivals. For pairs, `margin` is the log-probability of good minus bad, in nats. `right_per_token`
    compares log-probabilities per token, `right_critical` those of the critical words alone, given all words before
    them. `whole` is False for a claim that a prediction joins.

    Args:
        text: source of the n-gram counts, as `corpora.read` returns it; without it, n-gram rivals are missing.
        progress: as in `score_sentences`.
    """
    texts = (s.text for each in suite.paradigms for item in each.items for s in item.sentences.values())
    scores = {"right": token_scores(model, texts, progress)}
    tokenizer, ids = model.tokenizer, None if text is None else token_ids(model, text)
    assert tokenizer is not None
    for name, order in RIVALS.items():
        if not order:
            scores[name] = rival_scores(tokenizer, scores["right"], lambda row: np.full(len(row), -1.0))
        elif ids is not None:
            counts = KneserNey(ids, model.config.d_vocab, order)
            scores[name] = rival_scores(tokenizer, scores["right"], lambda row, c=counts: np.log(c.probabilities(row)))
    named_sisters = {each.name: each.sister for each in suite.paradigms if each.sister}
    sisters = {sister: name for name, sister in named_sisters.items()} | named_sisters
    paradigms = [replace(each, sister=sisters.get(each.name)) for each in suite.paradigms]
    tables = [(_predicted if each.predictions else _compared)(each, scores) for each in paradigms]
    table = pd.concat(tables, ignore_index=True)
    return table.reindex(columns=[*dict.fromkeys([*table, *RIVALS])])


def _facts(paradigm: Paradigm) -> dict[str, Any]:
    facts = {name: getattr(paradigm, name) for name in ("field", "phenomenon", "sister")}
    by_item = {name: [getattr(item, name) for item in paradigm.items] for name in ("key", "group", "pole")}
    return {"paradigm": paradigm.name, **facts, **by_item}


def _compared(paradigm: Paradigm, scores: Mapping[str, Scores]) -> pd.DataFrame:
    if any({GOOD, BAD} - item.sentences.keys() for item in paradigm.items):
        raise InputError(f"{paradigm.name}: expected items with a good and a bad sentence, or predictions; got neither")
    pairs = [[item.sentences[name] for name in (GOOD, BAD)] for item in paradigm.items]

    def margins(value: Any) -> np.ndarray:
        return np.array([value(good) - value(bad) for good, bad in pairs]).round(9)  # summation order breaks no tie

    def critical(sentence: Any) -> float:
        span = sentence.spans.get(CRITICAL)
        return np.nan if span is None else scores["right"][sentence.text].within(span)

    values = {name: margins(lambda s, of=of: of[s.text].total()) for name, of in scores.items()}
    values["right_per_token"] = margins(lambda s: np.nanmean(scores["right"][s.text].log_probability))
    values["right_critical"] = margins(critical)
    facts = {**_facts(paradigm), "prediction": "good > bad", "whole": True, "margin": values["right"]}
    return pd.DataFrame(facts | {name: (1 + np.sign(each)) / 2 for name, each in values.items()})


def _predicted(paradigm: Paradigm, scores: Mapping[str, Scores]) -> pd.DataFrame:
    regions, tables = {region for each in paradigm.predictions for region in each.regions}, []
    surprisals = {
        name: {region: np.array([_surprisal(item, region, of) for item in paradigm.items]) for region in regions}
        for name, of in scores.items()
    }
    for prediction in paradigm.predictions:
        claims = prediction.claims
        for claim in dict.fromkeys([prediction, *claims]):
            whole = claim is prediction
            facts = {"pole": "" if whole and len(claims) > 1 else claim.formula, "prediction": claim.formula}
            rights = {name: claim.holds(values) for name, values in surprisals.items()}
            tables.append(pd.DataFrame({**_facts(paradigm), **facts, "whole": whole, **rights}))
    return pd.concat(tables, ignore_index=True)


def _surprisal(item: Item, region: Region, scores: Scores) -> float:
    """The summed surprisal of a region's tokens, in bits."""
    sentence = item.sentences[region.condition]
    span = (0, len(sentence.text)) if region.number == ALL_REGIONS else sentence.spans[region.number]
    return -scores[sentence.text].within(span) / np.log(2)


def by_paradigm(items: pd.DataFrame) -> pd.DataFrame:
    """One row per paradigm and one per field (`level`), from the rows of `measure`.

    `accuracy` is the share right; `low` and `high` bound it over items, `group_low` and `group_high` over groups
    (for a field, over its paradigms). Each rival has a column of its accuracy. For paradigms, `verdict` and `why` give
    the verdict on the contrast, `rival` is the strictest, and `gain` is the model's mean over poles minus the rival's.
    """
    rows, verdicts = [], dict[frozenset[str], dict[str, Any]]()
    whole, paradigms = items.loc[items["whole"]], {*items["paradigm"]}
    for level, group in (("paradigm", "group"), ("field", "paradigm")):
        for name, part in whole.groupby(level, sort=False):
            scored = part.dropna(subset=["right"])
            row = {"level": level, "name": name, "n": len(scored), "missing": len(part) - len(scored)}
            row |= {"field": part["field"].iloc[0], "groups": scored[group].nunique()}
            row |= scored.reindex(columns=[*_SHARES]).mean()
            for prefix, over in (("", np.arange(len(scored)) % 1_000), ("group_", scored[group])):
                if not prefix or row["groups"] >= FEWEST_CLUSTERS:
                    names = "accuracy", f"{prefix}low", f"{prefix}high"
                    row |= zip(names, _interval(scored, ["right"], [*over]), strict=True)
            if level == "paradigm":
                row["phenomenon"] = part["phenomenon"].iloc[0]
                sister = part["sister"].iloc[0]
                both = frozenset({name, sister} & paradigms)
                if both not in verdicts:
                    verdicts[both] = _verdict(items.loc[items["paradigm"].isin([*both])], sister)
                row |= verdicts[both]
            rows.append(row)
    columns = ["level", "name", "field", "phenomenon", "n", "missing", "groups", "accuracy", "low", "high"]
    columns += ["group_low", "group_high", *_SHARES]
    return pd.DataFrame(rows, columns=[*columns, "verdict", "why", "rival", "gain", "gain_low", "gain_high"])


def _interval(
    rows: pd.DataFrame, columns: Sequence[str], groups: Any, weights: Any = 1.0
) -> tuple[float, float, float]:
    """The mean of a column, or of one minus another, with bounds over groups of rows."""
    codes, weights = pd.factorize(np.asarray(groups, object))[0], np.broadcast_to(weights, len(rows))
    totals = [np.bincount(codes, weights * rows[column].to_numpy())[:, None] for column in columns]
    bounds = contrast(np.stack(totals), np.bincount(codes, weights)[None, :, None], (1, -1)[: len(columns)])
    least = 1 - len(columns)  # 0 for a share, -1 for a difference of two
    return float(bounds.value[0]), float(np.clip(bounds.low[0], least, 1)), float(np.clip(bounds.high[0], least, 1))


def _verdict(rows: pd.DataFrame, sister: str | None) -> dict[str, Any]:
    """The verdict on one contrast, from the rows of a paradigm or of two sisters."""
    rows = rows.dropna(subset=["right"])
    poles = rows["paradigm"] if len({*rows["paradigm"]}) > 1 else rows["pole"]
    rows, poles = rows.loc[poles != ""], poles.loc[poles != ""]
    sizes = poles.value_counts()
    if len(sizes) < 2 or sizes.min() < _FEWEST:
        why = f"its sister {sister} is not in the suite" if sister else "nothing in the suite is its other pole"
        if len(sizes) > 1:
            why = f"the pole {sizes.index[-1]} has {sizes.iloc[-1]} of the {_FEWEST} items it needs"
        return {"verdict": NOT_TESTABLE, "why": why}
    bounds = {pole: _interval(part, ["right"], _clusters(part)) for pole, part in rows.groupby(poles, sort=False)}
    texts = [f"{pole} {share:.2f} ({low:.2f} to {high:.2f})" for pole, (share, low, high) in bounds.items()]
    weights = 1 / poles.map(sizes).to_numpy()
    means = {name: float(np.average(rows[name], weights=weights)) for name in RIVALS if not any(rows[name].isna())}
    rival = max(means, key=means.__getitem__)
    gain, gain_low, gain_high = _interval(rows, ["right", rival], _clusters(rows), weights)
    _, low, high = np.array([*bounds.values()]).T
    verdict = NOT_SHOWN
    if (low > 0.5).all() and gain_low > 0:
        verdict = PASSED
    elif (low > 0.5).any() and (high < 0.5).any():
        verdict = BIAS
    texts.append(f"over {rival.replace('_', '-')} {gain:+.2f} ({gain_low:+.2f} to {gain_high:+.2f})")
    facts = {"rival": rival, "gain": gain, "gain_low": gain_low, "gain_high": gain_high}
    return {"verdict": verdict, "why": "; ".join(texts), **facts}


def _clusters(rows: pd.DataFrame) -> Sequence[Any]:
    """The group of each row if there are enough groups to resample, else the row itself."""
    groups = rows["group"].tolist()
    return groups if len({*groups}) >= FEWEST_CLUSTERS else range(len(groups))
