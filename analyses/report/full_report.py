"""What do this model's heads do? Runs the analyses, and writes tables, figures and one HTML page that says it."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analyses import figures
from analyses import probe as layer_probes
from analyses.behaviours import MODULES, modules_for
from analyses.causal_tests import no_effects
from analyses.corpora import Corpus
from analyses.corpora.serving import Serving, serving
from analyses.experiments import experiments_section as small_experiments
from analyses.head_tables import EFFECT_COLUMNS, HEAD_COLUMNS, Collected, Heads, with_q
from analyses.labels import Labelled, label
from analyses.probe import Section as Probed
from analyses.reading.collectors import collect, refuse_unread
from analyses.reading.windows import Reading
from analyses.report import output
from analyses.report.behaviour_sections import LabelSection, Section, page
from analyses.report.illustrations import Drawn, illustrate
from interp import InputError, Transformer
from models.huggingface import weights_digest

_TWO_STACKS = (
    "its minimal pairs are prompts for models of one stack; `interp patch --target` patches an encoder-decoder"
)
Progress = Callable[[str, int], object]  # what is being done, and how many texts it has read


@dataclass(frozen=True)
class Result:
    """One behaviour in one kind of attention, measured and tested.

    `left_out` says why where this model could not be measured on its corpus.
    """

    behaviour: str
    kind: Heads
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
    experiments: bool | None = None,
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
        probes: whether every layer is probed (`analyses.probe`).
        experiments: whether the articles' small experiments are run (`analyses.experiments`); by default where no
            behaviours are chosen.
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
        if experiments is None:
            experiments = behaviours is None
        asked = small_experiments.section(model, new, seed=seed, progress=say) if experiments else None
        say("writing figures", 0)
        sections = [_section(new, result, several=len(model.config.stacks) > 1) for result in results]
        shown = None if labelled is None else _label_section(new, model, labelled)
        facts = _facts(model, corpora, results) | {
            "name": name or "a model",
            "seed": seed,
            "pairs": pairs,
            "labels_left_out": None if labelled is None else labelled.left_out,
            "probes": probed.facts if isinstance(probed, Probed) else {"left_out": probed},
            **(asked.facts if asked else {}),
            "command": command,
            "versions": output.versions(),
            "processor": platform.processor() or platform.machine(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        layers = probed if isinstance(probed, Probed) else None
        new.text("report.html", page(facts, sections, shown, layers, asked))
        new.run(facts)
    return Path(out)


def _measure(
    model: Transformer, behaviours: Sequence[str], corpora: Sequence[Corpus], *, seed: int, pairs: int, say: Progress
) -> list[Result]:
    """Every behaviour on its corpus, each corpus read once for each kind of attention."""
    found: dict[tuple[str, Heads], Result] = {}
    kinds = Heads.every(model)
    for used in serving({behaviour: MODULES[behaviour].NEEDS for behaviour in behaviours}, corpora):
        for kind in kinds:
            modules = modules_for(kind)
            asked = [behaviour for behaviour in used.asked if behaviour in modules]
            if not asked:
                continue
            collectors = [modules[behaviour].Collector(model, seed=seed, heads=kind) for behaviour in asked]
            reading = Reading(model, used.corpus, partial(say, f"{', '.join(asked)}: reading"), heads=kind)
            for behaviour, collected in zip(asked, collect(reading, collectors), strict=True):
                where = behaviour, kind
                found[where] = _result(model, *where, used, collected, seed=seed, pairs=pairs, say=say)
    return [found[behaviour, kind] for behaviour in behaviours for kind in kinds if (behaviour, kind) in found]


def _result(
    model: Transformer,
    behaviour: str,
    kind: Heads,
    used: Serving,
    collected: Collected | InputError,
    *,
    seed: int,
    pairs: int,
    say: Progress,
) -> Result:
    where = used.corpus, used.stands_in
    try:
        if isinstance(collected, InputError):
            raise collected
        heads = collected.table(seed=seed)
        refuse_unread(heads.attrs.get("counts", {}), used.corpus.name)
    except InputError as error:
        nothing = pd.DataFrame(columns=HEAD_COLUMNS), pd.DataFrame(columns=EFFECT_COLUMNS)
        return Result(behaviour, kind, *where, *nothing, left_out=str(error))
    if len(model.config.stacks) > 1:
        effects = no_effects(behaviour, _TWO_STACKS)
    else:
        effects = MODULES[behaviour].effects(
            model, pairs=pairs, seed=seed, progress=lambda n: say(f"{behaviour}: patching", n)
        )
    return Result(behaviour, kind, *where, heads, effects, collected=collected)


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
    collected = [result.collected for result in results if result.collected]
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
        for kind in Heads.every(model):
            own = labelled.labels.query("stack == @kind.stack and attention == @kind.attention")
            if len(own):
                whole = figures.label_map(own, kind.n_layers, kind.n_heads)
                caption = f"{kind.title.capitalize()}; the strongest evidence first, then rarer labels."
                drawn.append(Drawn(f"{_prefix(model, kind)}labels", whole, caption))
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
    tables = {"heads": result.heads, "effects": result.effects}
    drawn = illustrate(model, result.behaviour, result.corpus, **tables, headline=_headline(result), seed=seed)
    before = _prefix(model, result.kind)
    return replace(result, drawn=[replace(each, name=before + each.name) for each in drawn])


def _headline(result: Result) -> Sequence[str]:
    return modules_for(result.kind)[result.behaviour].HEADLINE


def _prefix(model: Transformer, kind: Heads) -> str:
    """What files of one kind of attention begin with, where there are several."""
    name = "cross" if kind.attention == "cross" else kind.stack
    return f"{name}-" if len(model.config.stacks) > 1 else ""


def _write_tables(new: output.Output, results: Sequence[Result]) -> None:
    measured = [result.heads for result in results if len(result.heads)]
    new.table("heads", pd.concat(measured, ignore_index=True))
    tested = [result.effects for result in results if len(result.effects)] or [results[0].effects]
    new.table("effects", pd.concat(tested, ignore_index=True))
    if baselines := [row for result in results for row in result.heads.attrs.get("baselines", ())]:
        new.table("baselines", pd.DataFrame(baselines))
    tasks = [task for result in results for task in result.effects.attrs.get("tasks", ())]
    new.table("tasks", pd.DataFrame(tasks, columns=None if tasks else ["task", "behaviour", "n", "refused"]))


def _section(new: output.Output, result: Result, *, several: bool) -> Section:
    svgs = [(drawn, new.figure(drawn.name, drawn.figure).read_bytes()) for drawn in result.drawn]
    return Section(
        behaviour=result.behaviour,
        kind=result.kind if several else None,
        own_targets="targets" in result.corpus.annotates,
        corpus=result.corpus.title,
        generated=result.generated,
        not_measured=result.left_out,
        documents=result.heads.attrs.get("documents"),
        headline=_headline(result),
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
                "measured": list(
                    dict.fromkeys(result.behaviour for result in results if result.corpus.name == corpus.name)
                ),
            }
            for corpus in read.values()
        ],
        "on_generated_stories": list(dict.fromkeys(result.behaviour for result in results if result.generated)),
        "left_out": {_named(model, result): _counts(result) for result in results},
        "not_measured": {_named(model, result): result.left_out for result in results if result.left_out},
        "targets": _targets(model, results),
        "causal_test_left_out": {
            result.behaviour: result.effects.attrs["left_out"]
            for result in results
            if result.effects.attrs.get("left_out")
        },
    }


def _named(model: Transformer, result: Result) -> str:
    """A behaviour, and in which kind of attention where there are several."""
    return result.behaviour + (f": {result.kind.title}" if len(model.config.stacks) > 1 else "")


def _targets(model: Transformer, results: Sequence[Result]) -> dict[str, str] | None:
    """What a decoder with an encoder read, by corpus."""
    if len(model.config.stacks) == 1:
        return None
    known = {result.corpus.name: "targets" in result.corpus.annotates for result in results}
    return {name: "its own targets" if own else "each text as its own target" for name, own in known.items()}


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
        "special_tokens": None if model.tokenizer is None else model.tokenizer.policy,
    }


def _digest_of_weights(model: Transformer) -> str:
    """For a model that was made in memory: the hash of its parameters, in their order."""
    return output.digest(parameter.detach().double().cpu().numpy().tobytes() for parameter in model.parameters())
