"""Runs `interp compare`: measures the models, and writes tables, figures, the record and one HTML page."""

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from analyses import figures
from analyses.compare.compare_page import depth_alt, gains_alt, headline, page
from analyses.compare.comparison import Comparison, Read, Say, compare, tokenizer_digest
from analyses.corpora import Corpus
from analyses.report import output
from analyses.report.full_report import model_facts
from analyses.report.renderer import image
from interp import InputError, Transformer

_GAINS = (
    "Each model’s best head for a measure, chosen on one half of the documents and drawn on the other, with 95% "
    "intervals. Left, its gain over the strictest baseline, which is 0; right, how much more or less that is than the "
    "reference’s, paired over documents. Where an interval on the right reaches 0, the two cannot be told apart."
)
_DEPTH = (
    "Every head of every model, by how deep its layer sits: 1 is a model’s last layer. Filled dots show the measure "
    "(a gain of at least 0.05, interval above 0, q below 0.05); the others do not."
)


def names(arguments: Sequence[str]) -> list[str]:
    """What to call models that were named so on the command line: a directory by its last part, duplicates numbered.

    Raises:
        InputError: fewer than two.
    """
    if len(arguments) < 2:
        raise InputError(
            f"expected at least two models to compare, got {len(arguments)}: {' '.join(arguments) or 'none'}; "
            "give directories, `default`, `minilm` or hub names, the reference first"
        )
    found: list[str] = []
    for argument in arguments:
        name = (Path(argument).resolve().name if Path(argument).is_dir() else "") or argument
        numbered, number = name, 1
        while numbered in found:
            number += 1
            numbered = f"{name} ({number})"
        found.append(numbered)
    return found


def build(
    models: Mapping[str, Transformer],
    corpora: Sequence[Corpus],
    out: Path,
    *,
    behaviours: Collection[str] | None = None,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
) -> Path:
    """Compare, draw and write everything into `out`; returns where it lies.

    Args:
        models: by name, transformers with tokenizers; the first is the reference.
        corpora: as of `compare`.
        out: the output directory; left as it was when anything fails.
        behaviours: as of `compare`.
        seed: of everything random.
        command: what the user typed, for the record.
        progress: called with what is being done and the number of texts read.

    Raises:
        InputError: as of `compare`, or an output directory that cannot be used.
    """
    started = time.perf_counter()
    say = progress or (lambda stage, texts: None)
    with output.writing(out) as new:
        found = compare(models, corpora, behaviours=behaviours, seed=seed, progress=say)
        new.table("compare", found.table)
        new.table("heads", found.heads)
        say("writing figures", 0)
        images = _images(new, found)
        facts = _facts(models, corpora, found) | {
            "seed": seed,
            "command": command,
            "versions": output.versions(),
            "processor": platform.processor() or platform.machine(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", page(facts, found, images))
        new.run(facts)
    return Path(out)


def _images(new: output.Output, found: Comparison) -> dict[str, dict[str, str]]:
    shown = headline(found.table)
    gains = figures.compared_gains(shown)
    heads = figures.gains_by_depth(found.heads, list(dict.fromkeys(shown["measure"])))
    drawn = {
        "gains": (gains, _GAINS, gains_alt(found.table)),
        "depth": (heads, _DEPTH, depth_alt(found)),
    }
    return {
        name: image(figure, new.figure(f"compare-{name}", figure).read_bytes(), caption, alt)
        for name, (figure, caption, alt) in drawn.items()
    }


def _facts(models: Mapping[str, Transformer], corpora: Sequence[Corpus], found: Comparison) -> dict[str, Any]:
    """What the numbers were made from."""
    unused = [corpus for corpus in corpora if corpus.name not in {used.corpus.name for used in found.used}]
    return {
        "reference": found.reads[0].name,
        "models": [_model(read, models[read.name]) for read in found.reads],
        "corpora": [
            {
                "name": used.corpus.name,
                "kind": used.corpus.kind,
                "sha256": used.corpus.digest,
                "measured": list(used.asked),
                "stood_in": used.stands_in,
                "documents": len(used.documents),
                "reporting_documents": used.reporting,
            }
            for used in found.used
        ],
        "corpora_not_used": [{"name": corpus.name, "kind": corpus.kind, "sha256": corpus.digest} for corpus in unused],
    }


def _model(read: Read, model: Transformer) -> dict[str, Any]:
    return {
        "name": read.name,
        **model_facts(model),
        "causal": model.config.last.causal,
        "tokenizer": tokenizer_digest(model),
        "left_out": read.counts,
        "not_measured": dict(read.left_out),
    }
