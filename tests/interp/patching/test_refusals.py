"""What cannot be patched, read or estimated is refused in one line that says what can be."""

from functools import partial

import pytest
import torch
from tiny import pairs_of_two, ragged_pairs, rows, two_stacks, variant

from interp import InputError, StackConfig, TokenBatch, Transformer, TransformerConfig
from interp import patching as p
from interp.attribution import composition_scores, direct_logit_attribution
from interp.patching import Receiver
from tests.interp.patching.settings import HEADS, LAYERS, PLACES, one_stack

PLAIN, Q = p.logit_difference(), Receiver("q", 1, 1)
PRE, GATED, ALONE = (one_stack(name, "decoder") for name in ("pre", "gated", "attention only"))
TWO, PAIRS, SOURCES, TARGETS = two_stacks("original"), ragged_pairs(), pairs_of_two("source"), pairs_of_two("target")
TRANSFORMED, ONE = variant("parallel", causal=False), p.logit_difference(torch.tensor([1]), torch.tensor([2]))
IDS = torch.arange(8).reshape(2, 4)
WHOLE = p.function(lambda logits: logits[..., 0, :], "whole")
BROKEN = p.function(lambda logits: logits[..., 0, 0] * torch.nan, "broken")
AFTER = one_stack("post", "decoder"), one_stack("post", "encoder"), variant("after"), variant("sandwich")
OF_TWO = "has an encoder and a decoder: give target="
NEITHER = "reads one text: expected neither target nor source"


def ask(way, *arguments, model: Transformer = PRE, pairs: object = PAIRS, metric: p.Metric = PLAIN, **how):
    return partial(way, model, pairs, metric, *arguments, **how)


def paths(*receivers: Receiver, model: Transformer = GATED, **how):
    return ask(p.path_patch, [*receivers], model=model, **how)


swept, estimated, edges = (partial(ask, way) for way in (p.sweep, p.attribution_patching, p.edge_attribution))
searched, ablated, in_order = (partial(ask, way) for way in (p.top_cells, p.ablate, p.ablate_in_order))
WAYS = (p.sweep, p.unpatched, p.ablate)
ONE_TEXT = ragged_pairs(d_vocab=19)
FAR = p.Claim(0, torch.tensor([2]), torch.tensor([[False, True, True, False]]))  # the remaining keys are out of reach
SILENT = Transformer(TransformerConfig(decoder=StackConfig(2, 6, 2, 3, 7, 13, 37, causal=True), output="none"))
SITES = [
    ("zz", LAYERS, "no patchable site 'zz'"),
    ("z", ("head",), "layer first"),
    ("resid_pre", HEADS, "resid_pre can be swept by layer first"),
    ("pattern", PLACES, "query"),
]
RECEIVERS = [
    (None, "at least one receiver"),
    (Receiver("q", 3, 0), "no layer 3 to receive q: expected 0-2"),
    (Receiver("mlp"), "no layer None to receive mlp"),
    (Receiver("q", 1, 4), "no head 4 of receiver q: expected 0-3"),
    (Receiver("k", 1, 2), "no head 2 of receiver k: expected 0-1"),
    (Receiver("mlp", 1, 0), "no head 0 of receiver mlp: it is not read by heads"),
    (Receiver("logits", 2), "expected no layer, got layer 2"),
    (Receiver("logits", head=0), "no head 0 of receiver logits"),
    (Receiver("q", 1, position=3), r"receiver 1.q@3: no position 3 in prompt \d: it has position 0-2"),
    (Receiver("q", 0, 1), "no z is written before 0.1.q read"),
]
REFUSED = [
    *((swept(site, by), message) for site, by, message in SITES),
    (estimated({"z": LAYERS, "resid_pre": HEADS}), "resid_pre can be swept by layer first"),
    *((paths(*[each] * bool(each)), message) for each, message in RECEIVERS),
    (partial(p.path_patch_by_forward, GATED, PAIRS, PLAIN, []), "at least one receiver"),
    (swept("resid_mid", PLACES, model=variant("parallel")), "no patchable site"),
    (swept(metric=WHOLE), "must give one number"),
    (swept(metric=BROKEN), "broken is nan for prompt 0"),
    (swept(budget=1_000), "too small for one cell"),
    # pairs
    (partial(p.Pairs.from_ids, PRE, IDS, IDS), "identical"),
    (swept(pairs=p.Pairs.from_ids(PRE, IDS, IDS + 1)), "no right answer"),
    # paths
    (paths(Q, budget=1_000), "too small for one cell"),
    (paths(Receiver("mlp", 1), model=ALONE), "no receiver 'mlp' in this model: expected one of q, k, v, logits"),
    (paths(Receiver("mlp", 0), sender="mlp_out", by=LAYERS), r"no mlp_out is written before 0\.mlp read"),
    (paths(Receiver("q", 1, 0), model=variant("norm over all heads")), "over all heads at once"),
    (paths(Receiver("logits"), model=TWO, pairs=SOURCES, stack="encoder"), "no receiver 'logits' in the encoder"),
    (paths(Receiver("q", 1), model=TWO, pairs=TARGETS, stack="encoder"), "comes from the source, which these pairs sh"),
    # estimates, edges, searches
    (estimated({}), "expected the axes of each site"),
    (estimated({"logits": PLACES}), "metrics read the logits: expected sites before them"),
    (estimated({"z": LAYERS}, metric=p.rank()), "rank has no gradient"),
    (estimated({"z": LAYERS}, metric=BROKEN), "broken is nan for prompt 0: expected a finite number"),
    (estimated({"z": LAYERS}, model=SILENT), "no output layer"),
    (ask(p.atp_star, {"z": LAYERS}, model=one_stack("one layer", "decoder")), "at least 2 layers, got 1"),
    (lambda: estimated({"z": LAYERS})()["z"].mean("rank"), "no metric 'rank'"),
    (edges(steps=0), "steps must be at least 1"),
    *((edges(model=model), "not defined where norms follow") for model in AFTER),
    (partial(p.edge_attribution, TWO, SOURCES, PLAIN), "is for models of one stack"),
    (partial(composition_scores, TWO), "is for models of one stack"),
    (partial(direct_logit_attribution, TRANSFORMED, PAIRS.clean, 3), "transforms its final stream before the output"),
    (searched(k=0), "k must lie between 1 and the number of cells, 12; got 0"),
    (searched(confidence=1.0), "confidence lies between 0 and 1, got 1.0"),
    (searched(tie=-0.1), "tie is a share"),
    (searched(site="mlp.pre", by=("layer", "neuron")), r"'mlp\.pre' needs many: use `sweep`"),
    # ablations
    (ablated(site="pattern", kind="mean"), "cannot ablate 'pattern' by kind='mean'.* expected 'zero'"),
    (ablated(kind="mean", mean=torch.zeros(3, 24)), r"shape \(3, 4, 6\), got \(3, 24\)"),
    (ablated(kind="zero", mean=torch.zeros(3, 4, 6)), "not used by kind='zero'"),
    (ablated(kind="resample", donors=torch.tensor([[1, 2]])), "give longer ones"),
    (ablated(pairs=rows((4,)), metric=ONE), "donors=, or ablate by kind='mean'"),
    (ablated(pairs=TokenBatch.from_rows([[1, 2, 3], [4]], side="left")), "padded on the right"),
    (in_order([(3, 0)]), r"no cell \(3, 0\) of z: expected \(layer 0-2, head 0-3\)"),
    (in_order([(0, 13)], "mlp.post"), "neuron 0-12"),
    (in_order([]), "at least one cell"),
    (in_order([(0, 1), (0, -3)]), "names each cell once"),
    (in_order([(0, 0)], "resid_pre"), r"no cell \(0, 0\) of resid_pre: expected \(layer 0-2\)"),
    (partial(p.mean_activation, PRE, []), "at least one text: got none"),
    (partial(p.mean_activation, TWO, IDS), r"two texts: expected \(sources, targets\)"),
    (partial(p.knock_out, variant("local, capped"), PAIRS.clean, [FAR]), "leave each row another one"),
    # two stacks
    (swept(model=TWO, pairs=TARGETS, stack="encoder"), r"encoder\.0\.attn\.z comes from the source, which these pairs"),
    (swept(model=TWO, pairs=SOURCES, stack="encoder", attention="cross"), "in this model's encoder: expected self"),
    (swept("resid_pre", LAYERS, model=TWO, pairs=SOURCES, attention="cross"), "site 'resid_pre' in cross-at"),
    (swept("resid_cross", LAYERS, model=TWO, pairs=SOURCES, stack="encoder"), "'resid_cross' in the encoder"),
    (partial(p.Pairs.from_ids, TWO, IDS, IDS + 1), OF_TWO),
    (partial(p.Pairs.from_ids, PRE, IDS, IDS + 1, target=IDS), NEITHER),
    *((partial(way, TWO, ONE_TEXT, p.kl_divergence()), OF_TWO) for way in WAYS),
    (partial(p.kl_divergence().prepare, TWO, ONE_TEXT), OF_TWO),
    (partial(TWO, ONE_TEXT.clean), OF_TWO),
    (partial(PRE, rows((2,)), target=rows((2,))), "reads one text: expected no target"),
    (swept(pairs=SOURCES), NEITHER),
    (partial(ragged_pairs, target=rows((2, 2, 2)), source=rows((2, 2, 2))), "a target or a source, got both"),
    (partial(ragged_pairs, target=rows((2, 2))), "expected one target for each of 3 pairs, got 2"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_it_is_refused_in_one_line(call, message):
    with pytest.raises(InputError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)
