"""Mistakes in what people type in notebooks: our error says what was expected, instead of one from torch.

Annotations are not checked here, as for users.
"""

import numpy
import pytest
from refusals import refusal

import interp
from analyses import corpora, report, viewer
from interp import patching
from models import load

MISTAKES = {
    "run('default', 'a')": "expected a model, as models.load('default') gives it; got 'default'",
    "run(m, 3)": "expected a text, a list of texts, or a tensor; got 3, of type int",
    "run(m, ['a', 3])": "got 3 in the list, of type int",
    "run(m, 'a', capture=3)": "expected the name of a site, got 3: interp.sites(model) lists them",
    "run(m, 'a', edit=zero())": "expected edits by site",
    "run(m, 'a', edit={Z: 0})": "expected an edit: zero(), set_to(value), ..., or a function of the value; got 0",
    "run(m, 'a', edit={Z: zero(head=[1, 2.5])})": "no head 2.5",
    "run(m, 'a', capture=Z)[0]": "0 was not captured",
    "m.W_Q[0, 9]": "no W_Q[0, 9]; W_Q: layer head d_model d_head, 4 x 8 x 256 x 32, each counted from 0",
    "m.tokenizer.decode('a')": "expected token ids of one text, as [5, 3]; got 'a'",
    "m.tokenizer.decode([-1])": "expected token ids of 0 or more, got -1",
    "generate(m, 'a', 1.5)": "expected a whole number as max_new_tokens, 0 or more and below 2 ** 63; got 1.5",
    "token_losses(m, 3)": "expected a text, a list of texts",
    "Pairs.from_texts(m, ['a'], ['b'], [3], [' d'])": "expected prompts and answers as lists of texts, got 3",
    "Pairs.from_texts(m, 'a', 'b', ' c', ' d')": "expected prompts and answers as lists of texts, got 'a'",
    "Pairs.from_texts(m, ['The grl'], ['The boy'], [' d'], [' e'])": "they are 4 and 3 tokens long (gr|l); each",
    "sweep(m, pairs, logit_difference)": "expected a metric, as logit_difference() gives it; got <function",
    "viewer.read(m, 3)": "expected a text to view, got 3",
    "corpora.read('no.conllu')": 'no file or directory "no.conllu"',
    "report.build(m, ['no.conllu'], 'never')": 'expected a list of corpora, as corpora.read("tales") gives each; got',
    "report.build('default', [], 'never')": "expected a model",
    "load(3)": 'expected a model\'s name or directory, such as "default"; got 3',
    "load('default', dtype='float32')": "expected a dtype of torch, such as torch.float32; got 'float32'",
}
FINE = ["run(m, 'a', edit={Z: zero(head=[numpy.int64(1)])})", "generate(m, 'a', numpy.int64(2))"]
FINE += ["Pairs.from_texts(m, ['a b'], ['a c'], [' d'], [' e'], positions={'END': numpy.int64(-1)})"]


@pytest.fixture(scope="module")
def names() -> dict:
    """A notebook's imports, and a few objects."""
    names = {"numpy": numpy, "corpora": corpora, "report": report, "viewer": viewer, "load": load}
    names |= {name: getattr(module, name) for module in (interp, patching) for name in module.__all__}
    pairs = patching.Pairs.from_texts(load("default"), ["The king was"], ["The queen was"], [" he"], [" she"])
    return names | {"m": load("default"), "Z": "decoder.0.attn.z", "pairs": pairs}


@pytest.mark.parametrize("call", [*MISTAKES, *FINE])
def test_it_says_what_was_expected_and_what_came(call, names, unchecked):
    if call in FINE:
        eval(call, names)
        return
    assert MISTAKES[call] in refusal(eval, call, names)
