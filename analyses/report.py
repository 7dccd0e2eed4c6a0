"""What do this model's heads do? Runs the analyses, and writes tables, figures and one HTML page that says it."""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyses import corpora as readers
from analyses import output
from analyses.corpora import Corpus
from analyses.illustrations import Drawn, illustrate
from analyses.labels import MODULES, label
from analyses.page import Section, page
from analyses.tables import EFFECT_COLUMNS, HEAD_COLUMNS
from interp import InputError, Transformer
from interp.statistics import benjamini_hochberg
from models.huggingface import weights_digest

GENERATED = "stories"
UNREADABLE = 0.9  # a model to whose tokenizer more of a corpus is unknown has not read it
Progress = Callable[[str, int], object]  # what is being done, and how many texts it has read


@dataclass(frozen=True)
class Result:
    """One behaviour, measured and tested; `left_out` says why where this model could not be measured on its corpus."""

    behaviour: str
    corpus: Corpus
    generated: bool  # no given corpus annotates it, so it was measured on generated stories
    heads: pd.DataFrame
    effects: pd.DataFrame
    drawn: Sequence[Drawn] = ()
    left_out: str | None = None


def build(
    model: Transformer,
    corpora: Sequence[Corpus],
    out: Path,
    *,
    behaviours: Sequence[str] | None = None,
    seed: int = 0,
    pairs: int = 40,
    labels: bool = False,
    command: str = "",
    name: str = "",
    progress: Progress | None = None,
) -> Path:
    """Measure, test, draw and write everything into `out`; returns where it lies.

    Args:
        model: a transformer with a tokenizer.
        corpora: annotated texts; a behaviour is measured on the first that annotates it, else on generated stories.
        out: the output directory; left as it was when anything fails.
        behaviours: which of `MODULES`; all by default.
        seed: of everything random.
        pairs: minimal pairs of each causal test.
        labels: whether heads are labelled too, which reads every corpus several times more (`analyses.labels`).
        command: what the user typed, for the record.
        name: the model's name, for the record.
        progress: called with what is being done and the number of texts read.

    Raises:
        InputError: no such behaviour, an empty or damaged corpus, nothing that can be measured with this model, or an
            output directory that cannot be used.
    """
    started = time.perf_counter()
    chosen = list(behaviours or MODULES)
    if unknown := set(chosen) - set(MODULES):
        raise InputError(f"no behaviour {', '.join(sorted(unknown))}: expected some of {', '.join(MODULES)}")
    say = progress or (lambda stage, texts: None)
    with output.writing(out) as new:
        measured = [_measure(model, behaviour, corpora, seed=seed, pairs=pairs, say=say) for behaviour in chosen]
        if all(result.left_out for result in measured):
            raise InputError(_reasons(measured))
        results = [_draw(model, result, seed=seed, say=say) for result in _corrected(measured)]
        _write_tables(new, results)
        labelled = _labels(model, results, seed, say) if labels else None
        if labelled is not None:
            new.table("labels", labelled)
        say("writing figures", 0)
        sections = [_section(new, result) for result in results]
        facts = _facts(model, corpora, results) | {
            "name": name or "a model",
            "seed": seed,
            "pairs": pairs,
            "labels_left_out": None if labelled is None else labelled.attrs["left_out"],
            "command": command,
            "versions": output.versions(),
            "processor": platform.processor() or platform.machine(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", page(facts, sections, labelled))
        new.run(facts)
    return Path(out)


def _measure(
    model: Transformer, behaviour: str, corpora: Sequence[Corpus], *, seed: int, pairs: int, say: Progress
) -> Result:
    module = MODULES[behaviour]
    corpus, generated = corpus_for(module.NEEDS, corpora)
    try:
        heads = module.measure(model, corpus, seed=seed, progress=lambda texts: say(f"{behaviour}: reading", texts))
        _refuse_unread(heads.attrs.get("counts", {}), corpus)
    except InputError as error:
        if model.tokenizer is None:
            raise
        for _ in corpus:  # raises where the text is at fault, and not what this model can see of it
            pass
        nothing = pd.DataFrame(columns=HEAD_COLUMNS), pd.DataFrame(columns=EFFECT_COLUMNS)
        return Result(behaviour, corpus, generated, *nothing, left_out=str(error))
    effects = module.effects(model, pairs=pairs, seed=seed, progress=lambda n: say(f"{behaviour}: patching", n))
    return Result(behaviour, corpus, generated, heads, effects)


def _refuse_unread(counts: Mapping[str, int], corpus: Corpus) -> None:
    unknown, tokens = counts.get("unknown tokens", 0), counts.get("tokens", 0)
    if tokens and unknown > UNREADABLE * tokens:
        raise InputError(
            f"{unknown:,} of the {tokens:,} tokens of {corpus.name} are unknown to this model's tokenizer: "
            "give a text that it was made for"
        )


def _reasons(results: Sequence[Result]) -> str:
    """Why nothing was measured, each reason once."""
    reasons = dict.fromkeys(result.left_out for result in results)
    of = {why: ", ".join(result.behaviour for result in results if result.left_out == why) for why in reasons}
    return "; ".join(f"{behaviours}: {why}" for why, behaviours in of.items())


def _corrected(results: Sequence[Result]) -> list[Result]:
    """The results with `q` over everything that the tables of heads and of effects test, all behaviours together."""
    heads = _with_q([result.heads for result in results])
    effects = _with_q([result.effects for result in results])
    return [replace(result, heads=h, effects=e) for result, h, e in zip(results, heads, effects, strict=True)]


def _with_q(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    q = benjamini_hochberg(np.concatenate([table["p"].to_numpy(dtype=float) for table in tables]))
    parts = np.split(q, np.cumsum([len(table) for table in tables])[:-1])
    return [table.assign(q=part) for table, part in zip(tables, parts, strict=True)]


def _labels(model: Transformer, results: Sequence[Result], seed: int, say: Progress) -> pd.DataFrame:
    """The labels of all behaviours that were measured, each on its corpus."""
    measured = {result.behaviour: result.corpus for result in results if not result.left_out}
    return label(model, measured, seed=seed, progress=say)


def _draw(model: Transformer, result: Result, *, seed: int, say: Progress) -> Result:
    if result.left_out:
        return result
    say(f"{result.behaviour}: drawing", 0)
    headline = MODULES[result.behaviour].HEADLINE
    tables = {"heads": result.heads, "effects": result.effects}
    drawn = illustrate(model, result.behaviour, result.corpus, **tables, headline=headline, seed=seed)
    return replace(result, drawn=list(drawn))


def corpus_for(needs: frozenset[str], corpora: Sequence[Corpus]) -> tuple[Corpus, bool]:
    """The first corpus with the annotations that a behaviour needs, and whether generated stories had to stand in."""
    fitting = [corpus for corpus in corpora if needs <= corpus.annotates]
    return (fitting[0], False) if fitting else (readers.read(GENERATED), True)


def corpus_title(corpus: Corpus) -> str:
    """How a corpus is called in a sentence."""
    return f"generated stories ({corpus.name})" if corpus.kind == GENERATED else corpus.name


def _write_tables(new: output.Output, results: Sequence[Result]) -> None:
    measured = [result.heads for result in results if len(result.heads)]
    new.table("heads", pd.concat(measured, ignore_index=True))
    tested = [result.effects for result in results if len(result.effects)] or [results[0].effects]
    new.table("effects", pd.concat(tested, ignore_index=True))
    if baselines := [row for result in results for row in result.heads.attrs.get("baselines", ())]:
        new.table("baselines", pd.DataFrame(baselines))
    tasks = [task for result in results for task in result.effects.attrs.get("tasks", ())]
    new.table("tasks", pd.DataFrame(tasks, columns=None if tasks else ["task", "behaviour", "n", "refused"]))


def _section(new: output.Output, result: Result) -> Section:
    svgs = [(drawn, new.figure(drawn.name, drawn.figure).read_bytes()) for drawn in result.drawn]
    return Section(
        behaviour=result.behaviour,
        corpus=corpus_title(result.corpus),
        generated=result.generated,
        not_measured=result.left_out,
        documents=result.heads.attrs.get("documents"),
        headline=MODULES[result.behaviour].HEADLINE,
        heads=result.heads,
        effects=result.effects,
        figures=[(drawn, svg) for drawn, svg in svgs],
        counts=_counts(result),
    )


def _counts(result: Result) -> dict[str, int]:
    """What was read and what was left out, in measuring and in the causal test."""
    tasks = result.effects.attrs.get("tasks", ())
    left_out = {f"pairs left out of {task['task']}": task["left_out"] for task in tasks if task.get("left_out")}
    return {**result.heads.attrs.get("counts", {}), **left_out}


def _facts(model: Transformer, corpora: Sequence[Corpus], results: Sequence[Result]) -> dict[str, Any]:
    """What the numbers were made from."""
    used = {result.corpus.name: result.corpus for result in results}
    read = {**{corpus.name: corpus for corpus in corpora}, **used}
    return {
        "model": model_facts(model),
        "corpora": [
            {
                "name": corpus.name,
                "kind": corpus.kind,
                "sha256": corpus.digest,
                "annotates": sorted(corpus.annotates),
                "measured": [result.behaviour for result in results if result.corpus.name == corpus.name],
            }
            for corpus in read.values()
        ],
        "on_generated_stories": [result.behaviour for result in results if result.generated],
        "left_out": {result.behaviour: _counts(result) for result in results},
        "not_measured": {result.behaviour: result.left_out for result in results if result.left_out},
        "causal_test_left_out": {
            result.behaviour: result.effects.attrs["left_out"]
            for result in results
            if result.effects.attrs.get("left_out")
        },
    }


def model_facts(model: Transformer) -> dict[str, Any]:
    """What run.json says of a model: shape, size, precision, and the hash of its weights."""
    weight = model.last.embed.token.weight
    source = getattr(model, "source", None)
    return {
        "sha256": weights_digest(source) if source is not None else _digest_of_weights(model),
        "stacks": {
            stack_name: {"layers": stack.n_layers, "heads": stack.n_heads, "d_model": stack.d_model}
            for stack_name, stack in model.config.stacks.items()
        },
        "context": model.config.n_ctx,
        "vocabulary": model.config.d_vocab,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(model.device),
    }


def _digest_of_weights(model: Transformer) -> str:
    """For a model that was made in memory: the hash of its parameters, in their order."""
    return output.digest(parameter.detach().double().cpu().numpy().tobytes() for parameter in model.parameters())
