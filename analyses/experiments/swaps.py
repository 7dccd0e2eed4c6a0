"""How much of a swapped word do heads carry, and how does a word's residual stream change with its context?

Every word ends its frame, so a causal model has read the context before it.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from analyses.experiments.experiment import SUBJECT, Outcome, batch_of, bounded, experiment_data, readable, tokenizer_of
from analyses.tasks.causal_tests import NO_OUTPUT
from interp import InputError, Model, Pairs, logit_difference, run, sweep
from interp.attribution import direct_logit_attribution, head_results
from interp.patching import unreliable
from interp.statistics import Shares, estimate, mean_interval, shares
from interp.tokens import align

Cells = NDArray[np.floating]
_DIRECT = "direct", "direct_low", "direct_high"
_KNIGHT_COLUMNS = "source layer head share ci_low ci_high direct direct_low direct_high n accuracy accuracy_low example"
_PROFESSION_COLUMNS = "layer place share ci_low ci_high n accuracy accuracy_low token source site example"


class Swap(NamedTuple):
    """A prompt, the same prompt with another noun, and the right continuation of each."""

    source: str
    clean: str
    corrupt: str
    right: str
    wrong: str


def swaps_of(experiment: str) -> list[Swap]:
    """An experiment's pairs: its templates, filled with all combinations of their slots' words."""
    swaps = []
    for template in experiment_data(experiment)["prompts"]:
        slots, texts = template["slots"], {name: text for name, text in template.items() if name != "slots"}
        for words in product(*slots.values()):
            filling = {}
            for names, word in zip(slots, words, strict=True):
                filling |= zip(names.split(), [word] if isinstance(word, str) else word, strict=True)
            swaps.append(Swap(**{name: text.format_map(filling) for name, text in texts.items()}))
    return swaps


def by_swapping(
    model: Model,
    experiment: str,
    sites: Mapping[str, tuple[str, ...]],
    tabulate: Callable[[Pairs, Mapping[str, Cells], Cells], pd.DataFrame],
    columns: str,
) -> Outcome:
    """Patch each source's pairs that a model can use, and join the tables that `tabulate` makes.

    `tabulate` gets a source's pairs, the effects by site (`*cells pair`, the mean of both directions) and the whole
    effects. `columns` orders the table; we add `source`, `accuracy` over all prompts, `accuracy_low` and `example`.
    """
    tokenizer_of(model)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    left_out, counts, refused, tables, swaps = Counter[str](), {}, {}, [pd.DataFrame()], swaps_of(experiment)
    for source in dict.fromkeys(swap.source for swap in swaps):
        try:
            pairs, example = _paired(model, source, [swap for swap in swaps if swap.source == source], left_out)
        except InputError as error:
            refused[source] = str(error)
            continue
        sweeps = {
            site: [sweep(model, way, logit_difference(), site, axes) for way in (pairs, pairs.swapped())]
            for site, axes in sites.items()
        }
        ways = next(iter(sweeps.values()))
        if reason := unreliable(ways[0].difference()):
            refused[source] = reason
            continue
        effects = {
            site: np.mean([each.effects().double().cpu().numpy() for each in two], 0) for site, two in sweeps.items()
        }
        whole = ways[0].difference().double().cpu().numpy()
        accuracy = float((torch.cat([way.clean["logit_difference"] for way in ways]) > 0).double().mean())
        counts[source] = len(pairs)
        answered = {"accuracy": accuracy, "accuracy_low": _least(accuracy, len(pairs)), "example": example}
        tables.append(tabulate(pairs, effects, whole).assign(source=source, **answered).filter(columns.split()))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), counts, left_out, refused)


def _paired(model: Model, source: str, swaps: Sequence[Swap], left_out: Counter[str]) -> tuple[Pairs, str]:
    swaps = readable(model, swaps, source, left_out, lambda swap: (swap.clean, swap.corrupt), "pairs")
    if not swaps:
        raise InputError("no pair can be read by this model")
    sides = [[getattr(swap, side) for swap in swaps] for side in ("clean", "corrupt", "right", "wrong")]
    pairs = Pairs.from_texts(model, *sides, drop=True)
    left_out.update({f"pairs where {reason}": count for reason, count in pairs.left_out.items()})
    first = swaps[pairs.kept[0]]
    return pairs, f"{first.clean}{first.right} / {first.corrupt}{first.wrong}"


def _least(share: float, n: int) -> float:
    """The lower end of a share's 95% interval (Wilson 1927), over pairs: a pair's prompts are not independent."""
    spread = 1.96 * (share * (1 - share) / n + 1.96**2 / (4 * n**2)) ** 0.5
    return (share + 1.96**2 / (2 * n) - spread) / (1 + 1.96**2 / n)


def shares_of(effects: Cells, whole: Cells, seed: int) -> Shares:
    """Sum of effects divided by sum of wholes over pairs, for each cell (flattened); missing values are left out."""
    return shares(effects.reshape(-1, effects.shape[-1]).T, whole, seed=seed)


def measure_knight(model: Model, *, seed: int = 0) -> Outcome:
    """The knight in shining: each head's share of the difference between two answers, patched and direct."""

    def tabulate(pairs: Pairs, effects: Mapping[str, Cells], whole: Cells) -> pd.DataFrame:
        share = shares_of(effects["z"], whole, seed)
        direct = shares_of(_direct(model, pairs), whole, seed)
        layer, head = np.unravel_index(np.arange(len(share.n)), effects["z"].shape[:2])
        return pd.DataFrame({"layer": layer, "head": head, **bounded(share), **bounded(direct, *_DIRECT), "n": share.n})

    return by_swapping(model, "knight", {"z": ("layer", "head")}, tabulate, _KNIGHT_COLUMNS)


def _direct(model: Model, pairs: Pairs) -> np.ndarray:
    """Each head's direct attribution in the clean prompts minus that in the corrupted ones: layer head pair."""
    batches = pairs.clean, pairs.corrupt
    try:
        sides = [direct_logit_attribution(model, batch, pairs.right, pairs.wrong) for batch in batches]
    except InputError:  # the model has norms after sums
        return np.full((model.config.n_layers, model.config.n_heads, len(pairs)), np.nan)
    return (sides[0].by_head() - sides[1].by_head()).double().cpu().numpy()


def measure_profession(model: Model, *, seed: int = 0) -> Outcome:
    """The soccer player, or the musician: the share of the difference that each layer and position carries."""

    def tabulate(pairs: Pairs, effects: Mapping[str, Cells], whole: Cells) -> pd.DataFrame:
        tokens = _tokens(model, pairs)
        places = ((site, _by_place(pairs, cells, whole, tokens, seed)) for site, cells in effects.items())
        return pd.concat([rows.assign(site=site) for site, rows in places])

    sites = {"resid_pre": ("layer", "position"), "z": ("layer", "position")}
    return by_swapping(model, "profession", sites, tabulate, _PROFESSION_COLUMNS)


def _by_place(pairs: Pairs, effects: Cells, whole: Cells, tokens: Mapping[int, str], seed: int) -> pd.DataFrame:
    from_end = np.full(effects.shape, np.nan)  # layer, tokens before the last, pair
    for pair, last in enumerate(pairs.last.cpu().numpy()):
        from_end[:, : last + 1, pair] = effects[:, last::-1, pair]
    share = shares_of(from_end, whole, seed)
    layer, distance = np.unravel_index(np.arange(len(share.n)), from_end.shape[:2])
    table = pd.DataFrame({"layer": layer, "place": -distance, **bounded(share), "n": share.n})
    table["token"] = [tokens[-place] for place in distance]
    first = int((pairs.first_changed.cpu() - pairs.last.cpu()).min())
    return table.loc[(table["place"] >= first) & (share.n > 0)]  # nothing before the subject can carry the difference


def _tokens(model: Model, pairs: Pairs) -> dict[int, str]:
    assert model.tokenizer is not None
    names = {}
    for distance in range(int(pairs.last.max()) + 1):
        column = pairs.last - distance
        rows = column >= 0
        ids = {int(id) for batch in (pairs.clean, pairs.corrupt) for id in batch.ids[rows, column[rows]]}
        names[-distance] = model.tokenizer.label(ids.pop()).strip() if len(ids) == 1 else SUBJECT
    return names


_NOUNS = {3: (1, 2), 7: (6,)}  # noun: its adjectives, as word indices in a scene
_ADJECTIVES = (1, 2, 6)
_CARRIED = "carried", "carried_low", "carried_high"
Words = list[str]
_TRIES = 100  # draws of other adjectives until their pieces match


def scenes(group: Mapping[str, Any], rng: random.Random) -> list[Words]:
    """A group's sentences, built like the article's: two adjectives and a noun, a verb, one adjective and a noun."""
    sentences = [group["first"]] if "first" in group else []
    for _ in range(group["count"]):
        first, second, third = rng.sample(group["adjectives"], 3)
        word = {slot: rng.choice(words) for slot, words in group["slots"].items()}
        sentences.append(["A", first, second, word["noun"], word["verb"], "the", third, word["place"]])
    return sentences


def measure_adjectives(model: Model, *, seed: int = 0) -> Outcome:
    """A fluffy blue creature: the attention of nouns to their adjectives over uniform attention.

    `carried` is a head's share of the change in a noun's final stream when the adjectives are swapped.
    """
    left_out, counts, tables, rng = Counter[str](), {}, [pd.DataFrame()], random.Random(seed)
    for group in experiment_data("adjectives")["prompts"]:
        source, offered = group["source"], scenes(group, rng)
        usable = readable(model, offered, source, left_out, lambda scene: [" ".join(scene)], "sentences")
        if usable:
            counts[source] = len(usable)
            tables.append(_rows(model, usable, group["adjectives"], left_out, seed).assign(source=source))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), counts, left_out)


def _rows(model: Model, usable: list[Words], adjectives: list[str], left_out: Counter[str], seed: int) -> pd.DataFrame:
    attention = np.stack([_attention(model, scene) for scene in usable])  # sentence, head or uniform, cell
    changed = [_with_other_adjectives(model, scene, adjectives, seed) for scene in usable]
    left_out["sentences without other adjectives of as many pieces"] += changed.count(None)
    unknown = np.full(attention.shape[-1], np.nan)
    pairs = zip(usable, changed, strict=True)
    carried = np.stack([unknown if each is None else _carried(model, scene, each) for scene, each in pairs])
    count = np.ones_like(attention[:, 0])
    gain = estimate(attention[:, 0], count, attention[:, 1], count, seed=seed)
    share = shares_of(carried.T, np.ones(len(carried)), seed)
    layer, head = np.unravel_index(np.arange(attention.shape[-1]), (model.config.n_layers, model.config.n_heads))
    columns = {"layer": layer, "head": head, "attention": gain.value, "uniform": gain.baseline}
    columns |= {"gain": gain.gain, "ci_low": gain.low, "ci_high": gain.high}
    return pd.DataFrame({**columns, **bounded(share, *_CARRIED), "n": len(usable), "n_carried": share.n})


def _word_tokens(model: Model, scene: Words) -> list[list[int]]:
    tokenizer, text = tokenizer_of(model), " ".join(scene)
    ends = np.cumsum([len(word) + 1 for word in scene]) - 1
    spans = [(int(end) - len(word), int(end)) for end, word in zip(ends, scene, strict=True)]
    owners = align(tokenizer.pieces(text).spans, spans, text)
    shift = len(tokenizer.prefix)
    return [[shift + token for token, owner in enumerate(owners) if owner == word] for word in range(len(scene))]


def _attention(model: Model, scene: Words) -> np.ndarray:
    """Attention to adjectives, averaged over nouns, of every head and of uniform attention: 2 x cell.

    Attention to a word is summed over its pieces, attention from a word averaged (Clark 2019).
    """
    (stack,) = model.config.stacks
    tokens = _word_tokens(model, scene)
    out = run(model, batch_of(model, [" ".join(scene)]), capture=f"{stack}.*.attn.pattern")
    pattern = torch.cat([value[0].cpu() for value in out.activations.values()]).double()  # cell query key
    by_noun = []
    for noun, adjectives in _NOUNS.items():
        queries = torch.tensor(tokens[noun])
        keys = torch.tensor([token for word in adjectives for token in tokens[word]])
        share = pattern[:, queries][:, :, keys].sum(-1).mean(-1)
        by_noun.append(torch.stack([share, (len(keys) / (queries + 1.0)).mean().expand_as(share)]))
    return torch.stack(by_noun).mean(0).numpy()


def _with_other_adjectives(model: Model, scene: Words, adjectives: list[str], seed: int) -> Words | None:
    rng = random.Random(f"{seed} {scene}")
    choices = [word for word in adjectives if word not in scene]
    for _ in range(_TRIES):
        changed = dict[int, str](zip(_ADJECTIVES, rng.sample(choices, 3), strict=True))
        variant = [changed.get(place, word) for place, word in enumerate(scene)]
        if _word_tokens(model, variant) == _word_tokens(model, scene):
            return variant
    return None


def _carried(model: Model, scene: Words, variant: Words) -> np.ndarray:
    (stack,) = model.config.stacks
    layers = range(model.config.n_layers)
    last = f"{stack}.{layers[-1]}.resid_post"
    sites = [last, *(f"{stack}.{layer}.attn.z" for layer in layers)]
    out = run(model, batch_of(model, [" ".join(words) for words in (scene, variant)]), capture=sites)
    nouns = [_word_tokens(model, scene)[noun][-1] for noun in _NOUNS]
    change = _change(out[last])[nouns]  # noun d_model
    written = torch.cat([_change(head_results(model, out, layer))[nouns] for layer in layers], 1)  # noun cell d_model
    share = (written * change[:, None]).sum(-1) / change.square().sum(-1, keepdim=True)
    return share.mean(0).detach().cpu().numpy()


def _change(site: Float[Tensor, "2 position ..."]) -> Float[Tensor, "position ..."]:
    return (site[0].double() - site[1].double()).cpu()


_COSINES = "near_cosine near_low near_high", "far_cosine far_low far_high", "gap ci_low ci_high"


def measure_word_sense(model: Model, *, seed: int = 0) -> Outcome:
    """Mole, ring: cosine distances of a word's streams between and within senses, by layer (0: embedded).

    Unambiguous words in the same frames are the controls.
    """
    tables, counts, left_out = [pd.DataFrame()], Counter[str](), Counter[str]()
    for group in experiment_data("word-sense")["prompts"]:
        source = group["source"]
        for word in group["words"]:
            senses = {
                sense: readable(model, frames, source, left_out, lambda frame, word=word: [f"{frame} {word}"])
                for sense, frames in group["senses"].items()
            }
            frames = [(sense, frame) for sense, usable in senses.items() if len(usable) > 1 for frame in usable]
            if len({sense for sense, _ in frames}) < 2:
                left_out[f"of the words (“{word}”, without two senses of two readable frames each)"] += 1
                continue
            counts[source] += len(frames)
            table = _sense_rows(model, word, group, frames, left_out, seed)
            tables.append(table.assign(n=len(frames), source=source, word=word))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), counts, left_out)


def _sense_rows(
    model: Model, word: str, group: Mapping[str, Any], frames: list[tuple[str, str]], left_out: Counter[str], seed: int
) -> pd.DataFrame:
    source, controls, (senses, texts) = group["source"], group["controls"], zip(*frames, strict=True)
    sentences = {control: [f"{text} {control}" for text in texts] for control in controls}
    usable = readable(model, controls, source, Counter(), sentences.__getitem__)
    left_out["control words that cannot be read in all frames"] += len(controls) - len(usable)
    roles = {"ambiguous": distances(model, word, texts, senses)}
    if usable:
        roles["control"] = np.mean([distances(model, control, texts, senses) for control in usable], 0)
        roles["excess"] = roles["ambiguous"] - roles["control"]
    rows = []
    for role, (between_senses, within_sense) in roles.items():
        for layer, gap in enumerate(between_senses - within_sense):
            value, low, high, _ = mean_interval(gap, seed=seed) if not np.isnan(gap).any() else (np.nan,) * 4
            means = {"between": between_senses[layer].mean(), "within": within_sense[layer].mean()}
            rows.append({"role": role, "layer": layer, **means, "gap": value, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


def distances(
    model: Model, word: str, frames: Sequence[str], senses: Sequence[str]
) -> Float[NDArray[np.float64], "2 layer frame"]:
    """Mean 1 - cosine between a word's stream in each frame and in frames of other senses, then of the same sense."""
    x = streams(model, [f"{frame} {word}" for frame in frames]).numpy()
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    gap = 1 - x @ x.swapaxes(1, 2)  # layer frame frame
    same_sense = np.equal.outer(*[np.unique(senses, return_inverse=True)[1]] * 2)
    itself = np.eye(len(senses), dtype=bool)
    between_senses, within_sense = ((gap * pick).sum(-1) / pick.sum(-1) for pick in (~same_sense, same_sense & ~itself))
    means = np.stack([between_senses, within_sense])
    if model.tokenizer is not None and len(model.tokenizer.continuation(f" {word}")) > 1:
        means[:, 0] = np.nan
    return means


def streams(model: Model, texts: Sequence[str]) -> Float[Tensor, "layer text d_model"]:
    """The residual stream at each text's last token: after embedding, then after every layer."""
    (stack,) = model.config.stacks
    batch = batch_of(model, texts)
    sites = [f"{stack}.embed", *(f"{stack}.{layer}.resid_post" for layer in range(model.config.n_layers))]
    out = run(model, batch, capture=sites)
    row, last = torch.arange(len(texts)), batch.lengths.cpu() - 1
    return torch.stack([out[site][row, last].cpu() for site in sites]).double()


def measure_companions(model: Model, *, seed: int = 0) -> Outcome:
    """Cosine of a word's stream with a word of its kind and with one of another kind, by layer (0: embedded)."""
    tokenizer, data = tokenizer_of(model), experiment_data("companions")
    rows, counts, left_out = [], Counter[str](), Counter[str]()
    for triple in data["triples"]:
        words = triple["word"], triple["near"], triple["far"]
        pieces = {len(tokenizer.continuation(f" {word}")) for word in words}
        if len(pieces) > 1:
            left_out[f"of the triples (“{'”, “'.join(words)}”, of unlike numbers of pieces)"] += 1
            continue
        texts = [[f"{frame} {word}" for word in words] for frame in data["frames"]]
        usable = [row for row in texts if readable(model, row, triple["source"], left_out, lambda text: [text]) == row]
        if usable:
            counts[triple["source"]] += len(usable)
            x = [streams(model, side).numpy() for side in zip(*usable, strict=True)]
            x = [side / np.linalg.norm(side, axis=-1, keepdims=True) for side in x]
            near, far = ((x[0] * side).sum(-1) for side in x[1:])  # layer frame
            for layer in range(0 if pieces == {1} else 1, len(near)):
                row = {**triple, "layer": layer}
                for columns, values in zip(_COSINES, (near, far, near - far), strict=True):
                    row |= zip(columns.split(), mean_interval(values[layer], seed=seed), strict=False)
                rows.append(row | {"n": len(usable)})
    return Outcome(pd.DataFrame(rows), counts, left_out)
