"""Hand-made tables of a report, small enough to derive results on paper."""

from pathlib import Path

import pandas as pd
import tiny

from analyses.page.sections import Page
from analyses.report.scaffold import write

_REFERENCE = dict.fromkeys(("reference", "reference_gain", "reference_low", "reference_q"), float("nan"))
TASKS = pd.DataFrame(
    [
        {"task": "repeat", "behaviour": "position", "carried": "copying", "accuracy": 1.0, "n": 80},
        {"task": "agreement", "behaviour": "part-of-speech", "carried": "was/were", "accuracy": 0.65, "n": 80},
    ]
)


def write_run(out: Path, facts: dict | None = None, **tables: list[dict]) -> Path:
    """A run's directory with these tables."""
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    page = Page("What?", ["short"], [], tables=frames, facts=facts or {})
    write(out, lambda run: page, {"tiny": tiny.model("gpt2")}, seed=0, command="interp x")
    return out


def head_at(layer: int, head: int) -> dict:
    return {"stack": "decoder", "attention": "self", "layer": layer, "head": head}


def heads_row(layer, head, behaviour, measure, value, baseline, **more):
    gain = value - baseline
    row = head_at(layer, head) | {"behaviour": behaviour, "measure": measure, "sink": "kept", "value": value}
    row |= {"baseline": baseline, "baseline_name": "uniform", "gain": gain, "ci_low": gain - 0.01, "q": 0.001}
    row |= {"ci_high": gain + 0.01, "unit": "lift" if measure.startswith("tag:") else "share", "documents": 20}
    return row | {"fewest": 5, "together": "", "readings": "kept", "n": 100, "corpus": "x"} | _REFERENCE | more


def label_row(layer, head, behaviour, label, evidence, gain, effect=0.001, measure=""):
    row = head_at(layer, head) | {"behaviour": behaviour, "label": label, "evidence": evidence, "gain": gain}
    row |= {"gain_low": gain - 0.01, "gain_high": gain + 0.01, "effect": effect, "effect_low": effect - 0.001}
    row |= {"effect_high": effect + 0.001, "q": 0.001, "q_effect": 0.4}
    return row | {"measure": measure or label, "readout": "next token"}


def effect_row(layer, head, task, way, effect, low):
    row = head_at(layer, head) | {"task": task, "intervention": way, "effect": effect, "ci_low": low, "ci_high": 1.0}
    behaviour = {"repeat": "position", "agreement": "part-of-speech"}[task]
    return row | {"behaviour": behaviour, "q": 0.001, "n": 40, "choosing_bound": low} | FLIPS


FLIPS = {"flips": 6, "flips_low": 2.0, "flips_high": 11.0}
RULE = head_at(1, 1) | {
    **{"behaviour": "part-of-speech", "measure": "relation:obj:dependent->head", "value": 0.7, "n": 100},
    **{"rival": "last VERB", "rival_value": 0.6, "target_share": 0.55, "verdict": "beats"},
    **{
        "margin_low": 0.05,
        "margin_high": 0.15,
        "rule": "no rule",
        "predicts": 0.5,
        "asked": 1.0,
        "choosing_margin": 0.1,
    },
}


def example_row(layer, head, fact, choice="best", **more):
    row = head_at(layer, head) | {"fact": fact, "corpus": "x", "measure": fact, "choice": choice, "pair": None}
    row |= {"sentence": "<b>one</b> two three", "asks": 2, "seen": 0, "weight": 0.876, "right": choice == "best"}
    return row | {"asked": 9, "read": 3, "hits": 4, "next": " four", "before": 0.9, "after": 0.3} | more


EXAMPLES = [
    example_row(1, 0, "induction"),
    example_row(1, 0, "induction", "random"),
    example_row(1, 1, "relation:obj:dependent->head", "random", before=None, after=None),
    example_row(0, 1, "agreement", measure=None, pair=7, hits=30, asked=40),
]


def hand_made() -> dict[str, pd.DataFrame]:
    """A head that copies, one of syntax that also looks nearby, one with effects only, and an idle one."""
    position, syntax = "position", "part-of-speech"
    heads = [
        heads_row(0, 0, position, "induction", 0.02, 0.02),
        heads_row(0, 1, position, "induction", 0.02, 0.02),
        heads_row(1, 0, position, "induction", 0.9, 0.02),
        heads_row(1, 1, syntax, "relation:obj:dependent->head", 0.7, 0.3),
        heads_row(1, 1, syntax, "tag:NOUN->VERB", 3.0, 1.0),
        heads_row(1, 1, position, "offset:-2", 0.2, 0.02),
        heads_row(1, 1, position, "previous-token", 0.3, 0.02),
    ]
    labels = [
        label_row(1, 0, position, "induction", "both", 0.88, 0.05),
        label_row(1, 1, syntax, "relation:obj:dependent->head", "attention", 0.4),
        label_row(1, 1, syntax, "tag:NOUN->VERB", "attention", 2.0),
        label_row(1, 1, position, "offset:-2", "attention", 0.18),
        label_row(1, 1, position, "previous-token", "attention", 0.28),
    ]
    effects = [
        effect_row(1, 0, "repeat", "noise", 0.15, 0.1),
        effect_row(1, 0, "repeat", "denoise", 0.16, 0.11),
        effect_row(0, 1, "agreement", "noise", 0.35, 0.25),
        effect_row(0, 1, "agreement", "denoise", 0.3, 0.2),
        effect_row(1, 1, "agreement", "denoise", 0.3, 0.2),  # sufficient, but not necessary
    ]
    key = {"behaviour": syntax, "task": "agreement"}
    pair = {"pair": 7, "half": "reports", "clean": "The <b>dog</b>", "corrupted": "The <b>dogs</b>"}
    pair |= {"right": " was", "wrong": " were", "clean_right": 0.8, "clean_wrong": 0.1}
    sets = [{**key, "heads": heads, "n": 40, **FLIPS} for heads in ("L0.H1", "L0.H1+L1.H1")]
    answers = [{**key, "heads": each["heads"], "pair": 7, "right": 0.2, "wrong": 0.7} for each in sets]
    prompts = {"prompts": [key | pair], "flips": sets, "answers": answers}
    effect = {"effect": 0.1, "effect_low": 0.05, "effect_high": 0.15}
    evidence = pd.DataFrame(
        [row | {"gain_low": row["ci_low"], "gain_high": row["ci_high"]} | effect for row in heads if row["gain"] > 0]
    )
    tables = {"heads": heads, "labels": labels, "effects": effects, "rules": [RULE], "examples": EXAMPLES, **prompts}
    return {name: pd.DataFrame(rows) for name, rows in tables.items()} | {"evidence": evidence, "tasks": TASKS}
