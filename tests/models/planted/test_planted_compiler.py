"""Composed models: every behaviour in every form shows its truth from paper, impostors their own rule's and no more."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech, position
from analyses.collectors import measured
from analyses.rivals.antecedents import RIVALS
from analyses.tables.head_tables import Measured
from benchmarks.planted import BEHAVIOURS, Composed, compose
from benchmarks.planted import planted_texts as texts
from benchmarks.planted.planted_texts import HE, SHE
from interp import AnnotatedText, InputError, TokenBatch, run
from interp.config import LayerNorm, NoNorm, RMSNorm
from interp.patterns import Rows, positional
from interp.visibility import Visibility
from models.planted import Planted, first_token, offset, seek, uniform

AMOD, NSUBJ = "relation:amod:head->dependent", "relation:nsubj:head->dependent"
VERB_ASKED = "relation:nsubj:dependent->head"
SHARED = 5e-5  # how unevenly a norm lets a row be shared that should be shared alike
EVERYTHING = [*BEHAVIOURS, "offset:-5"]


class Tables:
    """A composed model that holds every behaviour, and its tables, each made when it is first asked for."""

    def __init__(self, form: str, norm: LayerNorm | RMSNorm | NoNorm):
        self.form, self.norm = form, norm
        behaviours = EVERYTHING + (["offset:2"] if form == "encoder" else [])
        self.composed = compose(5, form=form, n_layers=3, n_heads=6, norm=norm, behaviours=behaviours)
        self.lexicon = self.composed.lexicon

    @cached_property
    def shuffled(self) -> list[AnnotatedText]:
        return texts.shuffled(self.lexicon, 40)

    @cached_property
    def much(self) -> list[AnnotatedText]:
        """A row's own keys are part of the shares that it is compared with, which takes much text to forget."""
        return texts.shuffled(self.lexicon, 200)

    @cached_property
    def positions(self) -> pd.DataFrame:
        return position.measure(self.composed.model, self.shuffled)

    @cached_property
    def lifts(self) -> pd.DataFrame:
        pairs = [("NOUN", "ADJ"), ("VERB", "NOUN"), ("NOUN", "VERB"), ("PRON", "NOUN")]
        return part_of_speech.measure(self.composed.model, self.much, tag_pairs=pairs)

    @cached_property
    def adjacent(self) -> pd.DataFrame:
        return part_of_speech.measure(self.composed.model, texts.sentences(self.lexicon, 25, apart=False))

    @cached_property
    def apart(self) -> pd.DataFrame:
        return part_of_speech.measure(self.composed.model, texts.sentences(self.lexicon, 25, apart=True))

    @cached_property
    def meetings(self) -> Measured:
        model = self.composed.model
        return measured(coreference.Collector(model), model, texts.meetings(self.lexicon, 120))

    @cached_property
    def episodes(self) -> Measured:
        model = self.composed.model
        return measured(coreference.Collector(model), model, texts.meetings(self.lexicon, 60, episodes=4))


QUICK = [("decoder", NoNorm()), ("encoder", LayerNorm()), ("grouped", RMSNorm())]
SLOW = [("decoder", LayerNorm()), ("encoder", NoNorm()), ("grouped", NoNorm()), ("grouped", LayerNorm())]


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
    ids=lambda each: f"{each[0]}-{type(each[1]).__name__}",
)
def planted(request) -> Measured:
    return Tables(*request.param)


def of(table: pd.DataFrame, composed: Composed, name: str, sink: str = "kept") -> pd.DataFrame:
    """The rows of the heads in which a behaviour sits."""
    cells = {(each.layer, each.head) for each in composed.where(name)}
    assert cells, f"{name} is not planted"
    table = table[table["sink"] == sink]
    return table[[cell in cells for cell in zip(table["layer"], table["head"], strict=True)]]


def one(table: pd.DataFrame, composed: Composed, name: str, measure: str) -> pd.Series:
    found = of(table, composed, name)
    found = found[found["measure"] == measure]
    assert len(found) == 1
    return found.iloc[0]


class TestPositions:
    def test_every_row_falls_where_the_name_says(self, planted):
        ahead = ["offset:2"] if planted.form == "encoder" else []
        for name in ["previous-token", "offset:-5", "first-token", *ahead]:
            row = one(planted.positions, planted.composed, name, name)
            assert row.value == pytest.approx(1.0, abs=1e-6), name
            assert row.ci_low > 0.5, name

    def test_copies_share_a_repeats_rows(self, planted):
        (where,) = planted.composed.where("duplicate-token")
        model = planted.composed.model
        causal = model.config.last.causal
        ids = position.repeated(model, 20, 4, seed=0)
        out = run(model, ids, capture=f"*.{where.layer}.attn.pattern")
        (pattern,) = out.activations.values()
        second = torch.zeros_like(ids, dtype=torch.bool)
        second[:, 21:] = True
        rows = Rows(ids, ids > 1, second, Visibility.of(out.tokens, causal=causal).mask()[:, 0].expand(4, -1, -1))
        sums = positional.Questions(rows, causal=causal).read(pattern[:, [where.head]])["kept"]
        values = dict(zip(positional.measures(causal), (sums.scores / sums.counts)[0, 0].tolist(), strict=True))
        assert values["self"] == pytest.approx(0.5, abs=SHARED)
        assert values["duplicate-token"] == pytest.approx(0.5, abs=SHARED)

    def test_induction_finds_what_followed_each_copy_that_it_sees(self, planted):
        row = one(planted.positions, planted.composed, "induction", "induction")
        length = position.repeat_length(planted.composed.model)
        # an encoder sees the successor of the second copy as well, which only the last token does not have
        expected = (1 + 1 / length) / 2 if planted.form == "encoder" else 1.0
        assert row.value == pytest.approx(expected, abs=1e-5)


class TestSyntax:
    def test_noun_to_adjective_has_the_lift_of_one_over_the_share_of_adjectives(self, planted):
        tags = [tag for text in planted.much for tag in text.tags or ()]
        row = one(planted.lifts, planted.composed, "noun-to-adjective", "tag:NOUN->ADJ")
        assert row.value == pytest.approx(len(tags) / tags.count("ADJ"), rel=0.1)

    @pytest.mark.parametrize("name", ["noun-to-adjective", "subject-to-verb"])
    def test_with_words_between_half_of_them_the_offset_falls_and_the_head_stays(self, planted, name):
        ahead = planted.form == "encoder" and name == "subject-to-verb"
        measure = AMOD if name == "noun-to-adjective" else VERB_ASKED if ahead else NSUBJ
        near = one(planted.adjacent, planted.composed, name, measure)
        assert (near.value, near.baseline, near.gain) == (1.0, 1.0, 0.0)
        assert near.baseline_name == ("offset +1" if ahead else "offset -1")
        row = one(planted.apart, planted.composed, name, measure)
        assert (row.value, row.baseline) == (1.0, 0.5)
        assert row.ci_low > 0.4

    @pytest.mark.parametrize("text", ["adjacent", "apart"])
    def test_impostors_gain_nothing_on_any_relation(self, planted, text):
        for name in ("previous-token", "offset:-5", "nearest-noun", "same-form", "first-token"):
            rows = of(getattr(planted, text), planted.composed, name)
            relations = rows[rows["measure"].str.startswith("relation:")]
            assert len(relations) >= 4
            # a row without a key at the offset looks everywhere, and is right now and then
            assert relations["gain"].max() <= (0.05 if name == "offset:-5" else 0), name


class TestReference:
    def test_antecedent_is_always_right_where_nearest_and_first_are_half_of_the_time(self, planted):
        row = one(planted.meetings.heads, planted.composed, "antecedent", "antecedent")
        assert (row.value, row.baseline, row.n) == (1.0, 0.5, 120)
        assert row.q < 1e-6
        baselines = planted.meetings.baselines
        kept = baselines[(baselines["measure"] == "antecedent") & (baselines["sink"] == "kept")]
        values = dict(zip(kept["baseline_name"], kept["value"], strict=True))
        assert values == dict.fromkeys((rival.name for rival in RIVALS), 0.5)

    def test_antecedent_stays_right_over_several_episodes(self, planted):
        row = one(planted.episodes.heads, planted.composed, "antecedent", "antecedent")
        assert (row.value, row.n) == (1.0, 240)
        assert row.ci_low > 0.3

    @pytest.mark.parametrize(("name", "rule"), [("nearest-noun", "nearest"), ("same-form", "same form")])
    def test_an_impostor_scores_what_its_rule_scores(self, planted, name, rule):
        values = []
        for found in (planted.meetings, planted.episodes):
            row = one(found.heads, planted.composed, name, "antecedent")
            kept = found.baselines.query("baseline_name == @rule and measure == 'antecedent' and sink == 'kept'")
            assert row.value == kept["value"].item()
            assert row.gain <= 0
            values.append(row.value)
        assert (values[1] == 0.5) == (name == "nearest-noun")  # over episodes the rules come apart


class TestNoise:
    def test_noise_heads_show_nothing(self, planted):
        composed = planted.composed
        found = of(planted.positions, composed, "noise")
        shares = found[~found["measure"].isin(["distance", "entropy", "positional-head"])]
        assert shares["gain"].abs().max() < 0.05
        relations = of(planted.apart, composed, "noise")
        assert relations[relations["measure"].str.startswith("relation:")]["gain"].max() < 0.05
        chosen = of(planted.episodes.heads, composed, "noise")
        assert not ((chosen["gain"] > 0.05) & (chosen["q"] < 0.05)).any()
        assert (of(planted.lifts, composed, "noise")["gain"].abs() < 0.1).all()

    @pytest.mark.parametrize("form", ["decoder", "encoder", "grouped"])
    def test_without_strength_they_are_uniform(self, form):
        composed = compose(1, form=form, n_layers=1, n_heads=2, norm=NoNorm(), behaviours=[], noise=0.0)
        corpus = texts.shuffled(composed.lexicon, 10)
        found = position.measure(composed.model, corpus)
        assert found[found["measure"] != "positional-head"]["gain"].abs().max() < 1e-6
        lifts = part_of_speech.measure(composed.model, corpus)
        tags = lifts[lifts["measure"].str.startswith("tag:") & (lifts["sink"] == "kept")]
        assert tags["gain"].abs().max() < 1e-4


def test_labels_of_a_head_are_found_or_mistaken(planted):
    (head,), (impostor,) = planted.composed.where("noun-to-adjective"), planted.composed.where("nearest-noun")
    noise, *_ = planted.composed.where("noise")
    assert head.found([AMOD])
    assert head.found(["previous-token"])  # a synonym
    assert not head.found(["antecedent", "offset:-5"])
    assert head.mistaken(["antecedent:named", AMOD]) == ["antecedent:named"]
    assert noise.mistaken(["self", AMOD]) == ["self", AMOD]
    assert not noise.found(["self"])
    assert impostor.mistaken(["antecedent", "tag:PRON->PROPN", AMOD]) == ["antecedent", AMOD]


# What each behaviour means, word by word, without a matrix.


def expected(name: str, words: Sequence[str], at: int, composed: Composed, causal: bool) -> set[int] | None:
    """The keys among which a row's attention is shared alike; None where nothing is promised."""
    visible = set(range(at + 1)) if causal else set(range(len(words)))
    if name in {"previous-token", "next-token"} or name.startswith("offset:"):
        by = {"previous-token": -1, "next-token": 1}.get(name) or int(name.partition(":")[2])
        return {at + by} if at + by in range(len(words)) else visible
    if name == "first-token":
        return {0}
    if name == "duplicate-token":
        return {key for key in visible if words[key] == words[at]}
    if name == "induction":
        after_copies = {key for key in visible if key and words[key - 1] == words[at]}
        return after_copies or (visible if causal else None)  # an encoder's first token remembers a bit of everything
    return sought(name, words, at, composed, causal)


def sought(name: str, words: Sequence[str], at: int, composed: Composed, causal: bool) -> set[int]:
    lexicon = composed.lexicon
    names, nouns = {*lexicon.masculine, *lexicon.feminine}, {*lexicon.animals, *lexicon.things}
    own_form = {*HE} if words[at] in HE else {*SHE}
    subjects = {*lexicon.animals, *names, *HE, *SHE}
    asking, answering = {
        "noun-to-adjective": (nouns, [lexicon.adjectives]),
        "subject-to-verb": (lexicon.verbs, [subjects]) if causal else (subjects, [lexicon.verbs]),
        "antecedent": ((*HE, *SHE), [lexicon.masculine if words[at] in HE else lexicon.feminine]),
        "nearest-noun": ((*HE, *SHE), [nouns | names]),
        "same-form": ((*HE, *SHE), [own_form, nouns | names | {*HE, *SHE}]),
    }[name]
    ahead = name == "subject-to-verb" and not causal
    itself = name != "same-form"
    side = range(at, len(words)) if ahead else range(at + itself)
    if words[at] not in asking:
        alike = set(range(at + 1)) if itself or at == 0 else set(range(at))
        return alike if causal else {0}
    for kind in answering:
        if found := [key for key in side if words[key] in kind]:
            return {min(found) if ahead else max(found)}
    return {min(side) if ahead else max(side, default=0)}


def check_rows(composed: Composed, corpus: Iterable[AnnotatedText], atol: float) -> int:
    """Compare every row of every planted head with its definition; how many rows were compared."""
    model = composed.model
    causal = model.config.last.causal
    assert model.tokenizer is not None
    compared = 0
    for text in corpus:
        words = [model.tokenizer.label(id) for id in model.tokenizer.encode(text.text)]
        out = run(model, text.text, capture="*.attn.pattern")
        patterns = torch.stack([each[0] for each in out.activations.values()])  # layer head query key
        for placed in composed.placed:
            if placed.behaviour.name == "noise":
                continue
            wanted = torch.zeros(len(words), len(words))
            keep = []
            for at in range(len(words)):
                keys = expected(placed.behaviour.name, words, at, composed, causal)
                if keys is not None:
                    keep.append(at)
                    wanted[at, list(keys)] = 1 / len(keys)
            found = patterns[placed.layer, placed.head]
            torch.testing.assert_close(
                found[keep], wanted[keep], atol=atol, rtol=0, msg=lambda m, p=placed: f"{p}\n{m}"
            )
            compared += len(keep)
    return compared


class TestRandomCompositions:
    @pytest.mark.parametrize(
        "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 23))]
    )
    def test_every_row_of_every_planted_head_is_as_defined(self, seed):
        form = ("decoder", "encoder", "grouped")[seed % 3]
        composed = compose(seed, form=form)
        lexicon = composed.lexicon
        corpus = [
            *texts.shuffled(lexicon, 2, seed),
            *texts.sentences(lexicon, 1, seed, apart=True),
            *texts.meetings(lexicon, 1, seed, episodes=3),
        ]
        assert check_rows(composed, corpus, atol=SHARED) > 100

    def test_all_behaviours_at_once_in_every_form(self, planted):
        # without a norm only the softmax's own tail is left
        assert (
            check_rows(planted.composed, planted.shuffled[:3], atol=1e-6 if planted.norm == NoNorm() else SHARED) > 1000
        )

    def test_same_seed_same_weights(self):
        first, again, other = compose(7, form="grouped"), compose(7, form="grouped"), compose(8, form="grouped")
        one, two = first.model.state_dict(), again.model.state_dict()
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        labels = [[each.behaviour.name for each in composed.placed] for composed in (first, again, other)]
        assert labels[0] == labels[1]
        assert (first.lexicon, labels[0]) != (other.lexicon, labels[2])


class TestNorms:
    """Codes pass a norm: exact to rounding where nothing has been written, within |w|² / (4 SIZE²) behind a write."""

    @pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()], ids=["layer", "rms"])
    def test_what_a_head_reads_from_the_embedding_survives_the_norm(self, norm):
        # one seed with and without a norm: the same words, heads and noise
        plain, normed = (
            compose(2, n_layers=3, n_heads=5, norm=each, behaviours=list(BEHAVIOURS)) for each in (NoNorm(), norm)
        )
        assert [each.behaviour.name for each in plain.placed] == [each.behaviour.name for each in normed.placed]
        corpus = [text.text for text in texts.shuffled(plain.lexicon, 3)]
        capture = ["decoder.0.attn.q", "decoder.0.attn.k", "decoder.*.attn.pattern", "logits"]
        exact, through = (run(each.model, corpus, capture=capture) for each in (plain, normed))
        for site in ("decoder.0.attn.q", "decoder.0.attn.k"):
            torch.testing.assert_close(through[site], exact[site], atol=1e-5, rtol=2e-6)
        for layer in range(3):
            site = f"decoder.{layer}.attn.pattern"
            torch.testing.assert_close(through[site], exact[site], atol=SHARED if layer else 1e-6, rtol=0)
        torch.testing.assert_close(through["logits"], exact["logits"], atol=1e-4, rtol=1e-4)


class TestSeeking:
    def test_words_of_several_pieces_and_padding_change_nothing(self):
        model = Planted(
            ["a", "b", "c", "d"], [[seek({"asks": ["told"]})]], n_ctx=9, directions={"asks": ["a"], "told": ["b", "c"]}
        ).build()
        assert model.tokenizer is not None
        batch = TokenBatch.from_texts(["b d a", "c d d b-c d a d"], model.tokenizer)
        pattern = run(model, batch, capture="decoder.0.attn.pattern")["decoder.0.attn.pattern"][:, 0]
        assert pattern[0, 2, :3].tolist() == pytest.approx([1, 0, 0])
        assert pattern[1, 7].argmax() == 5  # the latest piece of "b-c"
        assert pattern[1, 8] == pytest.approx([1 / 9] * 9)

    def test_a_better_class_wins_over_a_nearer_word(self):
        plan = seek({"asks": ["good", "better"]})
        for causal in (True, False):
            classes = {"asks": ["a"], "good": ["b", "c"], "better": ["c"]}
            model = Planted(["a", "b", "c", "d"], [[plan]], n_ctx=8, causal=causal, directions=classes).build()
            site = f"{'decoder' if causal else 'encoder'}.0.attn.pattern"
            pattern = run(model, "c d b a c", capture=site)[site][0, 0]
            assert pattern[3].tolist() == pytest.approx([1, 0, 0, 0, 0])


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"behaviours": ["reads-minds"]}, "unknown behaviour 'reads-minds': expected one of previous-token, "),
            ({"behaviours": ["offset:far"]}, "unknown behaviour 'offset:far'"),
            ({"behaviours": ["offset:2"], "form": "grouped"}, "no 'offset:2' in a decoder"),
            ({"behaviours": list(BEHAVIOURS), "n_layers": 2, "n_heads": 4}, "10 behaviours do not fit into 2 layers"),
            ({"behaviours": ["induction"], "n_layers": 1}, "induction heads need layers above the first"),
            ({"form": "grouped", "n_heads": 1}, "at least two heads a layer"),
            ({"n_layers": 0}, "at least one layer and one head, got 0 and"),
        ],
    )
    def test_one_clear_line(self, arguments, message):
        with pytest.raises(InputError, match=message) as caught:
            compose(0, **arguments)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("planted", "message"),
        [
            (Planted(["a"], [[offset(1)]]), "a decoder sees no later token"),
            (
                Planted(["a"], [[seek({"x": ["x"]}, after=True)]], directions={"x": ["a"]}),
                "cannot look after its query",
            ),
            (Planted(["a"], [[seek({"x": ["y"]})]], directions={"x": ["a"]}), "no planted direction 'y'"),
            (Planted(["a"], [[seek({"x": [], "y": []})]], directions={"x": ["a"], "y": ["a"]}), "'a' asks in several"),
            (Planted(["a"], [[uniform]], directions={"x": ["b"]}), "'b' is not in the planted vocabulary"),
            (Planted(["a"], []), "at least one layer"),
            (Planted(["a"], [[uniform, first_token, uniform]], n_kv_heads=2), "cannot share 2 key/value heads evenly"),
        ],
    )
    def test_of_a_single_head(self, planted, message):
        with pytest.raises(InputError, match=message):
            planted.build()
