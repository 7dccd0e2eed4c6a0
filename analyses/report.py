"""What do this model's heads do? Runs the analyses, and writes tables, figures and one HTML page that says it."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analyses import corpora as readers
from analyses import figures, output
from analyses import probes as layer_probes
from analyses.collecting import collect, refuse_unread
from analyses.corpora import Corpus
from analyses.illustrations import Drawn, illustrate
from analyses.labels import MODULES, Labelled, label
from analyses.page import LabelSection, Section, page
from analyses.probes import Section as Probed
from analyses.tables import EFFECT_COLUMNS, HEAD_COLUMNS, Collected, with_q
from analyses.windows import Reading
from interp import InputError, Transformer
from models.huggingface import weights_digest

GENERATED = "stories"
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
    collected: Collected | None = None


def build(
    model: Transformer,
    corpora: Sequence[Corpus],
    out: Path,
    *,
    behaviours: Sequence[str] | None = None,
    seed: int = 0,
    pairs: int = 40,
    labels: bool = True,
    probes: bool = True,
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
        labels: whether heads are labelled (`analyses.labels`).
        probes: whether every layer is probed (`analyses.probes`).
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
        measured = _measure(model, chosen, corpora, seed=seed, pairs=pairs, say=say)
        if all(result.left_out for result in measured):
            raise InputError(_reasons(measured))
        results = [_draw(model, result, seed=seed, say=say) for result in _corrected(measured)]
        _write_tables(new, results)
        labelled = _labels(model, results, seed, say) if labels else None
        probed = _probes(new, model, corpora, seed, say) if probes else None
        say("writing figures", 0)
        sections = [_section(new, result) for result in results]
        shown = None if labelled is None else _label_section(new, model, labelled)
        facts = _facts(model, corpora, results) | {
            "name": name or "a model",
            "seed": seed,
            "pairs": pairs,
            "labels_left_out": None if labelled is None else labelled.left_out,
            "probes": probed.facts if isinstance(probed, Probed) else {"left_out": probed},
            "command": command,
            "versions": output.versions(),
            "processor": platform.processor() or platform.machine(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", page(facts, sections, shown, probed if isinstance(probed, Probed) else None))
        new.run(facts)
    return Path(out)


def _measure(
    model: Transformer, behaviours: Sequence[str], corpora: Sequence[Corpus], *, seed: int, pairs: int, say: Progress
) -> list[Result]:
    """Every behaviour on its corpus, each corpus read once."""
    found: dict[str, Result] = {}
    for corpus, own, generated in _reading_list(behaviours, corpora):
        collectors = [MODULES[behaviour].Collector(model, seed=seed) for behaviour in own]
        reading = Reading(model, corpus, partial(say, f"{', '.join(own)}: reading"))
        for behaviour, collected in zip(own, collect(reading, collectors), strict=True):
            found[behaviour] = _result(model, behaviour, corpus, generated, collected, seed=seed, pairs=pairs, say=say)
    return [found[behaviour] for behaviour in behaviours]


def _reading_list(behaviours: Sequence[str], corpora: Sequence[Corpus]) -> list[tuple[Corpus, list[str], bool]]:
    """Which corpus is read for which behaviours, and whether generated stories had to stand in."""
    of = {behaviour: corpus_for(MODULES[behaviour].NEEDS, corpora) for behaviour in behaviours}
    shared: dict[tuple[str, bool], tuple[Corpus, list[str], bool]] = {}
    for behaviour, (corpus, generated) in of.items():
        shared.setdefault((corpus.digest + corpus.name, generated), (corpus, [], generated))[1].append(behaviour)
    return list(shared.values())


def _result(
    model: Transformer,
    behaviour: str,
    corpus: Corpus,
    generated: bool,
    collected: Collected | InputError,
    *,
    seed: int,
    pairs: int,
    say: Progress,
) -> Result:
    try:
        if isinstance(collected, InputError):
            raise collected
        heads = collected.table(seed=seed)
        refuse_unread(heads.attrs.get("counts", {}), corpus.name)
    except InputError as error:
        nothing = pd.DataFrame(columns=HEAD_COLUMNS), pd.DataFrame(columns=EFFECT_COLUMNS)
        return Result(behaviour, corpus, generated, *nothing, left_out=str(error))
    effects = MODULES[behaviour].effects(
        model, pairs=pairs, seed=seed, progress=lambda n: say(f"{behaviour}: patching", n)
    )
    return Result(behaviour, corpus, generated, heads, effects, collected=collected)


def _reasons(results: Sequence[Result]) -> str:
    """Why nothing was measured, each reason once."""
    reasons = dict.fromkeys(result.left_out for result in results)
    of = {why: ", ".join(result.behaviour for result in results if result.left_out == why) for why in reasons}
    return "; ".join(f"{behaviours}: {why}" for why, behaviours in of.items())


def _corrected(results: Sequence[Result]) -> list[Result]:
    """The results with `q` over everything that the tables of heads and of effects test, all behaviours together."""
    heads = with_q([result.heads for result in results])
    effects = with_q([result.effects for result in results])
    return [replace(result, heads=h, effects=e) for result, h, e in zip(results, heads, effects, strict=True)]


def _labels(model: Transformer, results: Sequence[Result], seed: int, say: Progress) -> Labelled:
    """The labels of all behaviours that were measured, each on its corpus."""
    corpora = {result.behaviour: result.corpus for result in results if result.collected}
    collected = {result.behaviour: result.collected for result in results if result.collected}
    effects = pd.concat([result.effects for result in results], ignore_index=True)
    return label(model, corpora, collected=collected, effects=effects, seed=seed, progress=say)


def _probes(
    new: output.Output, model: Transformer, corpora: Sequence[Corpus], seed: int, say: Progress
) -> Probed | str:
    """What probes read from every layer, or why they could not."""
    try:
        return layer_probes.section(model, corpora, new, seed=seed, progress=say)
    except InputError as error:
        return str(error)


def _label_section(new: output.Output, model: Transformer, labelled: Labelled) -> LabelSection:
    """Write what labels rest on, and draw it."""
    new.table("labels", labelled.labels)
    new.table("evidence", labelled.evidence)
    drawn = []
    if len(labelled.labels):
        (stack,) = model.config.stacks
        whole = figures.label_map(labelled.labels, model.config.n_layers, model.config.n_heads)
        caption = f"The heads of the {stack}, layer by layer; the strongest evidence and the largest gains first."
        drawn.append(Drawn("labels", whole, caption))
    if bool(labelled.evidence["effect"].notna().any()):
        caption = (
            "A dot is a head, measured on the half of the text that reports; ρ is the rank correlation over all heads. "
            "Coloured heads carry the label."
        )
        drawn.append(Drawn("agreement", figures.attention_against_effect(labelled.evidence, labelled.labels), caption))
    images = [(each, new.figure(each.name, each.figure).read_bytes()) for each in drawn]
    return LabelSection(labelled.labels, images)


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
