"""A report's own names for heads: those of its atlas, in words, order and colour; or one line that says why not."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny import LLAMA

from analyses import view
from analyses.behaviours import OURS
from analyses.headlines.facts import called_by
from analyses.headlines.head_cards import overview
from analyses.page.sections import Page
from analyses.report.scaffold import write
from interp import InputError, Transformer, TransformerConfig, run, zero
from interp.running import edited
from models import load, save, weights_digest
from tests.analyses.headlines.hand_made_tables import hand_made

MODEL = Transformer(TransformerConfig(decoder=LLAMA))


def left(out: Path, tables) -> Path:
    write(out, lambda run: Page("What?", ["short"], [], tables=tables), {"tiny": MODEL}, command="interp report")
    return out


def test_heads_are_called_and_coloured_as_in_the_atlas(tmp_path):
    tables = hand_made()
    out, (_, first) = left(tmp_path / "report", tables), overview(tables, OURS)
    atlas = {cell.name: cell for layer in first.atlases[0].layers for cell in layer}
    named = {f"L{place[2]}.H{place[3]}": called for place, called in called_by(out, MODEL).items()}
    told = {name: (each.words, each.behaviour, each.needed) for name, each in named.items()}
    assert told == {
        name: (re.sub("[\u00ad\u200b]", "", cell.first), cell.behaviour, cell.state == "needed")
        for name, cell in atlas.items()
        if cell.state != "quiet"
    }
    assert [*named] == [card.id for card in first.cards][: len(named)]
    seen = view(run(MODEL, torch.tensor([[1, 2, 3]]), capture="*.pattern"), labels=out)
    assert seen.viewer is not None
    assert dict(seen.viewer.called) == called_by(out, MODEL)


def test_what_is_no_report_of_this_model_is_refused_in_one_line(tmp_path):
    quiet = {"heads": hand_made()["heads"].assign(q=1.0), "tasks": pd.DataFrame({"task": []})}
    assert called_by(left(tmp_path / "quiet", quiet), MODEL) == {}
    out, bare = left(tmp_path / "report", hand_made()), left(tmp_path / "bare", {"cells": pd.DataFrame({"layer": [0]})})
    for report, model, why in (
        (
            out,
            Transformer(TransformerConfig(decoder=replace(LLAMA, d_mlp=8))),
            "is about tiny: it has no names for heads",
        ),
        (out, edited(MODEL, {"decoder.0.attn.z": zero()}), r"whose fingerprint is another \(weights, settings, edits"),
        (out, edited(MODEL, {"decoder.0.attn.z": lambda z: z}), "whose fingerprint is another"),  # which has none
        (bare, MODEL, "bare is no report of heads: expected a directory that `interp report` left"),
    ):
        with pytest.raises(InputError, match=why):
            called_by(report, model)


def test_a_report_from_before_there_were_fingerprints_is_known_by_its_weight_files(tmp_path):
    save(MODEL, tmp_path / "model")
    loaded, out = load(tmp_path / "model"), left(tmp_path / "report", hand_made())
    record = json.loads((out / "run.json").read_text())
    del record["model"]["fingerprint"]
    record["model"]["sha256"] = weights_digest(tmp_path / "model")
    (out / "run.json").write_text(json.dumps(record))
    assert called_by(out, loaded)
    with pytest.raises(InputError, match="whose sha256 is another"):
        called_by(out, MODEL)
