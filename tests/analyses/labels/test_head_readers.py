"""Who reads a head? Planted truth, plain path patching, and sentences."""

import pytest
import tiny
import torch
from repeats import PREVIOUS, two_layers

from analyses.headlines.sentences import readers_clause
from analyses.labels import head_readers
from interp import InputError
from interp.circuits import Graph
from interp.patching import Receiver, logit_difference, path_patch
from interp.patching.results import ANSWERS
from models import planted
from tests.analyses.labels.test_key_writers import labels


def test_the_keys_of_the_induction_head_read_the_previous_token_head_and_the_output_layer_reads_it():
    model = two_layers(PREVIOUS, planted.uniform)
    claims = labels((0, 0, "previous-token"), (1, 0, "induction"))
    table = head_readers.measure(model, claims.assign(task="repeat"), behaviours=["position"])
    effects = {(row["layer"], row["reader"]): row["effect"] for row in table.to_dict("records")}
    readers = [*(f"1.{head}.{part}" for part in "qkv" for head in range(2)), "logits"]
    expected = {(0, reader): float(reader == "1.0.k") for reader in readers} | {(1, "logits"): 1.0}
    assert effects == pytest.approx(expected, abs=1e-3)
    needed = table.loc[table["q"] < 0.05]
    assert {*zip(needed["layer"], needed["reader"], strict=True)} == {(0, "1.0.k"), (1, "logits")}
    first = needed.loc[needed["layer"] == 0].to_dict("records")
    assert readers_clause(first) == "Read by L1.H0’s keys (−100% of the logit difference when cut)"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cut_edge_is_a_path_patched_by_itself(name):
    model, pairs = tiny.model(name), tiny.ragged_pairs()
    clean, corrupt, values = head_readers._cut(model, pairs, "0.1")
    readers = head_readers._readers(Graph.from_model(model), "0.1")
    assert len(readers) == len(values) > 5
    for reader, value in zip(readers, values, strict=True):
        numbers, part = [int(each) for each in reader.split(".") if each.isdigit()], reader.strip(".0123456789")
        cells = path_patch(model, pairs, logit_difference(), [Receiver(part, *numbers)], direction="noise")
        torch.testing.assert_close(value, cells.values[ANSWERS][0, 1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(clean, cells.clean[ANSWERS])
        torch.testing.assert_close(corrupt, cells.corrupt[ANSWERS])


def test_models_without_edges_and_tasks_that_cannot_be_done_have_no_readers():
    with pytest.raises(InputError, match="norms follow the layers"):
        head_readers.measure(tiny.model("post-norm decoder"), labels((0, 0, "induction")))
    with pytest.raises(InputError, match="with an output layer"):
        head_readers.measure(tiny.model("bert"), labels((0, 0, "induction")))
    claims = labels((0, 0, "previous-token")).assign(task="repeat")
    unable = two_layers(planted.uniform, planted.uniform)
    assert head_readers.measure(unable, claims, behaviours=["position"]).empty
    assert head_readers.measure(unable, claims.assign(task=None), behaviours=["position"]).empty
