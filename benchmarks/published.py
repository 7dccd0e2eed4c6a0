"""How do heads of a model compare with what papers report, on real text?

    python -m benchmarks.published relations --model minilm --choose EWT-TRAIN --report EWT-DEV
    python -m benchmarks.published pronouns --model minilm --corpus LITBANK --corpus GAP.tsv
    python -m benchmarks.published scores --model minilm --corpus GAP.tsv --corpus WINOBIAS --corpus WINOGENDER
    python -m benchmarks.published sentences --novels LITBANK/novels BLIMP/anaphor_*.jsonl.gz
    python -m benchmarks.published sentence-heads BLIMP/anaphor_*.jsonl.gz --answer herself --answer themselves

`relations` picks the head with the largest gain for every dependency relation on one text, and reports it on another.
Beside it is BERT-base's best head (Clark et al. 2019, Table 1), for Stanford relations, which only resemble UD's.
`pronouns` picks the head that finds most antecedents on the even half of each corpus's documents. It reports the head
and every baseline on the odd half: on all pronouns, and on those whose nearest true antecedent is a name or a noun.
`scores` prints the scores that the papers of GAP, WinoBias and Winogender use. It picks head and rule in the same way.
`sentences` prints how many good sentences of BLiMP's pairs are more probable, for the model and for two rivals:
5-grams counted on novels in the model's own tokens, and agreement with the last noun. The published columns come from
`models_summary.jsonl` beside the file.
`sentence-heads` patches heads on such pairs and applies every refusal of `tables/effects`.
All print Markdown.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analyses import coreference, corpora, part_of_speech
from analyses.corpora.sentence_pairs import Sentence, read_sentences
from analyses.measures.head_tables import Collected
from analyses.patch.patch_run import make_pairs, read_pairs, with_corrupt
from analyses.reading.windows import Reading
from analyses.report.coreference_scores import REPORTING, RULES, coreference_scores
from analyses.scoring.antecedents import RIVALS
from analyses.scoring.collectors import collect
from analyses.scoring.rules import RELATIONS
from analyses.suites.ngrams import KneserNey
from analyses.tasks.causal_tests import Task, patch_heads
from benchmarks.console import arguments
from benchmarks.default_model import streams, tokenizer_of
from interp import InputError, Transformer
from interp.bounded_files import lines
from interp.losses import token_losses
from interp.statistics import Contrast, contrast
from models import load

BERT = {  # best head, best fixed offset, in percent
    "det": (94.3, 51.7),
    "obj": (86.8, 40.0),
    "amod": (75.6, 68.3),
    "nsubj": (58.5, 45.5),
    "nmod:poss": (80.5, 47.7),
}
_WAYS = ("dependent->head", "head->dependent")


def kept_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the reading that keeps the first position."""
    return table.loc[table["sink"] == "kept"]


def relations(model: Transformer, choose: str, report: str) -> None:
    """Print a row per relation and direction."""
    chosen, reported = (kept_rows(part_of_speech.measure(model, corpora.read(spec))) for spec in (choose, report))
    print("| relation | head | accuracy | best offset | gain | 95% interval | q | n | BERT-base: head / offset |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in RELATIONS:
        for way in _WAYS:
            measure = f"relation:{name}:{way}"
            rows = chosen.loc[chosen["measure"] == measure].dropna(subset=["gain"])
            if rows.empty:
                continue
            best = rows.loc[rows["gain"].idxmax()]
            where = (reported["layer"] == best["layer"]) & (reported["head"] == best["head"])
            rows_there = reported.loc[where & (reported["measure"] == measure)]
            if rows_there.empty:
                continue
            (row,) = rows_there.to_dict("records")
            bert = "{} / {}".format(*BERT[name]) if name in BERT else ""
            print(
                f"| {name} {way} | L{row['layer']}.H{row['head']} | {row['value']:.1%} | {row['baseline']:.1%} "
                f"({row['baseline_name'].removeprefix('offset ')}) | {row['gain']:+.3f} "
                f"| {row['ci_low']:+.3f} to {row['ci_high']:+.3f} | {row['q']:.2g} | {row['n']:,} | {bert} |"
            )


def pronouns(model: Transformer, specs: Sequence[str]) -> None:
    """Print a table per corpus: all rules and the best head, on all items and on those with a named antecedent."""
    for spec in specs:
        corpus = corpora.read(spec)
        (collected,) = collect(Reading(model, corpus), [coreference.Collector(model)])
        if not isinstance(collected, Collected):
            print(f"{corpus.name}: {collected}\n")
            continue
        tables = [collected.half(half).table() for half in (0, 1)]
        print(f"{corpus.name}: {collected.documents:,} documents, context {model.config.n_ctx}\n")
        print("| | all pronouns | nearest antecedent named |\n|---|---|---|")
        rules = collected.half(1).measured().baselines
        for rule in (rival.name for rival in RIVALS):
            print(f"| {rule} |" + "".join(f" {_value(rules, rule, name):.1%} |" for name in _ASKED))
        for condition in _ASKED:
            print(_best(kept_rows(tables[0]), kept_rows(tables[1]), condition))
        print()


def scores(model: Transformer, specs: Sequence[str]) -> None:
    """Print a table per corpus: its paper's score for the chosen head and every rule."""
    for spec in specs:
        results = coreference_scores(model, corpora.read(spec))
        table = results.table.loc[results.table["half"] == REPORTING]
        (title,) = set(table["paper"])
        print(f"{title}: {results.clusters:,} clusters, context {model.config.n_ctx}\n")
        print(f"| | head | value | {' | '.join(RULES)} | head minus chosen rule | n | sees |")
        print("|---|---|---|---|---|---|---|---|")
        for (score, condition), rows in table.groupby(["score", "condition"], sort=False):
            head = rows.loc[rows["chosen"] & rows["head"].notna()].iloc[0]
            rules = [f"{rows.loc[rows['resolver'] == rule, 'value'].iloc[0]:.3f}" for rule in RULES]
            gain = f"{head['gain']:+.3f} ({head['gain_low']:+.3f} to {head['gain_high']:+.3f})"
            print(
                f"| {', '.join(filter(None, (score, condition)))} | {head['resolver']} "
                f"| {head['value']:.3f} ({head['ci_low']:.3f} to {head['ci_high']:.3f}) | {' | '.join(rules)} "
                f"| {gain if head['gain'] == head['gain'] else ''} | {head['n']:,} | {head['coverage']:.2f} |"
            )
        print()


_ASKED = ("antecedent", "antecedent:named")


def _value(rules: pd.DataFrame, rule: str, measure: str) -> float:
    rows = rules.loc[(rules["baseline_name"] == rule) & (rules["measure"] == measure) & (rules["sink"] == "kept")]
    return float(rows["value"].iloc[0])


def _best(choosing: pd.DataFrame, reporting: pd.DataFrame, measure: str) -> str:
    """The table row of the best head for `measure` on the choosing half, with values from the reporting half."""
    rows = choosing.loc[choosing["measure"] == measure]
    best = rows.loc[rows["value"].idxmax()]
    mine = reporting.loc[(reporting["layer"] == best["layer"]) & (reporting["head"] == best["head"])]
    cells = []
    for name in _ASKED:
        (row,) = mine.loc[mine["measure"] == name].to_dict("records")
        cells.append(
            f" {row['value']:.1%}, {row['gain']:+.3f} over {row['baseline_name']} "
            f"({row['ci_low']:+.3f} to {row['ci_high']:+.3f}), n {row['n']:,} |"
        )
    chosen = "all" if measure == "antecedent" else "named"
    return f"| best head on {chosen}, L{best['layer']}.H{best['head']} |" + "".join(cells)


Score = Callable[[Sequence[Sentence]], np.ndarray]  # higher for the better sentence
_IRREGULAR = {"men", "women", "people", "children", "teeth", "geese", "mice", "feet", "oxen", "cacti", "alumni"}
_IRREGULAR |= {"criteria", "phenomena"}
_SINGULAR = "ss", "us", "is"  # actress, alumnus, analysis


def choices(score: Score, pairs: Sequence[tuple[Sentence, Sentence]]) -> np.ndarray:
    """For each pair: 1 if the good sentence scores higher, 0 if the bad one does, 0.5 if they tie."""
    good, bad = (score(sentences) for sentences in zip(*pairs, strict=True))
    return (1 + np.sign(good - bad)) / 2


def share_right(right: np.ndarray, rival: np.ndarray | None = None) -> Contrast:
    """The share of right pairs, minus the rival's if there is one, with a 95% interval over pairs."""
    totals = np.stack([right] if rival is None else [right, rival])[..., None]
    return contrast(totals, np.ones_like(totals), (1, -1)[: len(totals)])


def by_model(model: Transformer) -> Score:
    """The log-probability of the whole sentence."""
    return lambda sentences: np.array([-float(each.sum()) for each in token_losses(model, [s.text for s in sentences])])


def by_counts(model: Transformer, novels: Path) -> Score:
    """The same for a 5-gram model with Kneser-Ney smoothing, counted on the default's training novels."""
    tokenizer = tokenizer_of(model)
    counts = KneserNey(streams(tokenizer, novels, 0.1)[0].numpy(), model.config.d_vocab)
    return lambda sentences: np.array(
        [np.log(counts.probabilities(np.array(tokenizer.encode(s.text)))[1:]).sum() for s in sentences]
    )


def by_last_noun(sentences: Sequence[Sentence]) -> np.ndarray:
    """Whether the verb agrees in number with the word before it, judged by their -s and a list of irregular nouns.

    A capitalised word counts as a singular name unless "the" precedes it.
    """
    scores = []
    for _, before, verb in sentences:
        *_, determiner, noun = "", "", *before.split()
        has_s = noun.endswith("s") and not noun.endswith(_SINGULAR)
        plural = noun in _IRREGULAR or (has_s and (noun.islower() or determiner.lower() == "the"))
        scores.append(plural != verb.split()[0].removesuffix("n't").endswith("s") if verb else 0)
    return np.array(scores, dtype=float)


def sentences(model: Transformer, files: Sequence[Path], novels: Path | None) -> None:
    """Print a row per file of pairs."""
    tokenizer, counts = tokenizer_of(model), None if novels is None else by_counts(model, novels)
    print(
        "| pairs | model | n, model if deciding words are one token | 5-gram | model minus 5-gram | last noun ",
        end="",
    )
    print("| published: n-gram | LSTM | GPT-2 |\n|---|---|---|---|---|---|---|---|---|")
    for file in files:
        pairs, name = read_sentences(file), file.name.partition(".")[0]
        right = choices(by_model(model), pairs)
        whole = np.array([all(len(tokenizer.continuation(f" {each.word}")) == 1 for each in pair) for pair in pairs])
        cells = [share_right(right), share_right(right[whole]), *[None] * 3]
        if counts is not None:
            ngram = choices(counts, pairs)
            cells[2:4] = share_right(ngram), share_right(right, ngram)
        if "subject_verb" in name or "distractor" in name:
            cells[4] = share_right(choices(by_last_noun, pairs))
        texts = ["" if each is None else f"{interval(each)}" for each in cells]
        texts[1] = f"{whole.sum()}, {texts[1]}"
        summary = file.with_name("models_summary.jsonl")
        published = [json.loads(line) for line in lines(summary)] if summary.is_file() else []
        row = next((row for row in published if row["UID"] == name), {})
        texts += [str(row.get(column, "")) for column in ("ngram", "lstm", "gpt2")]
        print(f"| {name} | {' | '.join(texts)} |", flush=True)


def interval(share: Contrast) -> str:
    """A share with its 95% interval."""
    return f"{share.value[0]:.3f} [{share.low[0]:.3f}, {share.high[0]:.3f}]"


def sentence_heads(model: Transformer, files: Sequence[Path], answers: Sequence[str]) -> None:
    """Print a row per head that both halves of the pairs name, or the refusal. `answers` selects pairs."""
    for file in files:
        prompts, name = read_pairs(file), file.name.partition(".")[0]
        if answers:
            prompts = prompts.loc[prompts[["answer", "wrong"]].isin([*answers]).all(axis=1)].reset_index(drop=True)
        prompts = with_corrupt(model, prompts)
        pairs = make_pairs(model, prompts, drop=True, source=file.name)
        used = prompts.iloc[list(pairs.kept)]
        ways = {which: used[which].tolist() for which in ("clean", "corrupt")}  # a prompt may also corrupt another
        task = Task(name, "", pairs, left_out=pairs.left_out, clusters=ways, answers=used["answer"].tolist())
        effects = patch_heads(model, "sentences", [task])
        (facts,) = effects.tasks
        print(f"{name}: {facts['n']} pairs, right {facts['accuracy']:.3f}, {facts['refused'] or 'not refused'}\n")
        heads = effects.table.loc[effects.table["choosing_bound"].notna() & (effects.table["q"] < 0.05)]
        for row in heads.sort_values("effect", ascending=False).to_dict("records"):
            print(f"| L{row['layer']}.H{row['head']} {row['intervention']} | {row['effect']:.3f} ", end="")
            print(f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}] | {row['flips']} of {row['n']} flip |")


def main() -> None:
    """Print the chosen table."""
    parser = arguments(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_relations = kinds.add_parser("relations")
    of_relations.add_argument("--choose", required=True)
    of_relations.add_argument("--report", required=True)
    of_pronouns = kinds.add_parser("pronouns")
    of_scores = kinds.add_parser("scores")
    for sub in (of_pronouns, of_scores):
        sub.add_argument("--corpus", required=True, action="append")
    of_sentences = kinds.add_parser("sentences")
    of_sentences.add_argument("--novels", type=Path, help="text to count 5-grams on; by default this rival is left out")
    of_heads = kinds.add_parser("sentence-heads")
    of_heads.add_argument("--answer", action="append", default=[], help="patch only pairs with two of these words")
    for sub in (of_sentences, of_heads):
        sub.add_argument("files", nargs="+", type=Path)
    for sub in (of_relations, of_pronouns, of_scores, of_sentences, of_heads):
        sub.add_argument("--model", default="default")
    options = parser.parse_args()
    try:
        model = load(options.model)
        if options.kind == "relations":
            relations(model, options.choose, options.report)
        elif options.kind == "sentences":
            sentences(model, options.files, options.novels)
        elif options.kind == "sentence-heads":
            sentence_heads(model, options.files, options.answer)
        else:
            (pronouns if options.kind == "pronouns" else scores)(model, options.corpus)
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
