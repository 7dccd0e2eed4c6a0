"""Models in memory become ours, with the same numbers and no needless copy; or one line says why not."""

import copy
import json

import pytest
import torch
from families import variant
from parity import transformers
from refusals import refusal
from tiny import randomise, token_ids
from torch import nn
from torch.testing import assert_close
from worded import word_level

from interp import Tokenizer, Transformer, TransformerConfig, run
from interp.config import Plain, StackConfig
from models import Wrapped, copy_weights, load, save, wrap
from models.families import by_head, columns

COPIED = {"gpt2": set(), "llama": {"attn.qkv.weight", "mlp.up.weight"}, "bert": {"attn.qkv.weight", "attn.qkv.bias"}}
MADE_OF = {
    "gpt2": "h.1.attn.c_attn.weight",
    "llama": ", ".join(f"layers.1.self_attn.{part}_proj.weight" for part in "qkv"),
    "bert": ", ".join(f"encoder.layer.1.attention.self.{part}.weight" for part in ("query", "key", "value")),
}
IDS = token_ids(3, 11, d_vocab=23)


def build(family: str, dtype: torch.dtype = torch.float32, **changes: object):
    return variant(family, **changes).build(dtype).eval()


@pytest.mark.parametrize("family", COPIED)
def test_what_is_shared_and_what_was_copied_is_told(family):
    wrapped = wrap(build(family))
    shares = wrapped.shares
    copied = [share.parameter for share in shares.parameters if not share.shared]
    assert {name.partition(".blocks.")[2][2:] for name in copied} == COPIED[family]
    sizes = {name: weight.nbytes for name, weight in wrapped.named_parameters()}
    n_copied = sum(map(sizes.get, copied))
    assert (shares.copied_bytes, shares.shared_bytes) == (n_copied, sum(sizes.values()) - n_copied)
    assert shares.copied == n_copied / sum(sizes.values())
    first, *rest = repr(shares).splitlines()
    assert f"({shares.copied:.1%})" in first
    assert len(rest) == bool(COPIED[family])
    table = shares.table().set_index("parameter")
    assert table.loc[[*sizes], "bytes"].tolist() == [*sizes.values()]
    (stack,) = wrapped.config.stacks
    assert table.loc[f"stacks.{stack}.blocks.1.attn.qkv.weight", "made_of"] == MADE_OF[family]


def test_a_view_of_a_head_here_edits_their_model():
    theirs = build("gpt2")
    wrapped = wrap(theirs)
    with torch.no_grad():
        wrapped.last.blocks[1].attn.W_V[2].zero_()
        changed = theirs(IDS).logits
    value = theirs.transformer.h[1].attn.c_attn.weight[:, -7:]
    assert torch.equal(value, torch.zeros(21, 7))
    assert_close(run(wrapped, IDS).logits, changed, atol=1e-4, rtol=1e-5)


def test_a_copy_is_untouched_and_can_be_filled_again():
    theirs = build("llama")
    copied, half = wrap(theirs, copy=True), wrap(theirs)
    assert copied.shares.copied == 1
    before = run(copied, IDS).logits
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.mul_(1.5)
    assert torch.equal(run(copied, IDS).logits, before)
    expected = run(wrap(theirs, copy=True), IDS).logits
    assert not torch.equal(run(half, IDS).logits, expected)
    for model in (copied, half):  # one of them shares the weights it is filled from
        copy_weights(model, theirs)
        assert_close(run(model, IDS).logits, expected, atol=1e-6 * float(expected.abs().max()), rtol=0)


def test_wrapping_draws_nothing_and_leaves_their_model_alone():
    theirs = build("bert").train()
    theirs.requires_grad_(False)
    state, before = torch.get_rng_state(), copy.deepcopy(theirs.state_dict())
    wrapped = wrap(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(dict(theirs.state_dict()), dict(before), atol=0, rtol=0)
    assert theirs.training
    assert not wrapped.training
    assert not any(weight.requires_grad for weight in theirs.parameters())
    assert all(weight.requires_grad and weight.is_leaf for weight in wrapped.parameters())
    run(wrapped, IDS, grad=True).logits.sum().backward()
    assert all(weight.grad is None for weight in theirs.parameters())


def test_tensors_with_a_config_are_the_model():
    theirs = build("llama")
    for config in (theirs.config, json.loads(theirs.config.to_json_string())):
        wrapped = wrap(theirs.state_dict(), config=config)
        assert torch.equal(run(wrapped, IDS).logits, run(wrap(theirs), IDS).logits)
        assert wrapped.shares.shared_bytes > 0


def test_a_tensor_of_another_dtype_is_copied_and_the_reason_given():
    theirs = build("gpt2", dtype=torch.bfloat16)
    theirs.transformer.ln_f.float()
    wrapped = wrap(theirs)
    assert {weight.dtype for weight in wrapped.parameters()} == {torch.bfloat16}
    assert [share.parameter for share in wrapped.shares.parameters if not share.shared] == [
        "stacks.decoder.norm.weight",
        "stacks.decoder.norm.bias",
    ]
    assert "the others are bfloat16: stacks.decoder.norm.bias, stacks.decoder.norm.weight" in repr(wrapped.shares)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own warning about an import
@pytest.mark.slow
def test_what_torch_compile_has_wrapped_is_the_same_model():
    theirs = build("gpt2")
    assert torch.equal(run(wrap(torch.compile(theirs)), IDS).logits, run(wrap(theirs), IDS).logits)


def test_a_wrapped_model_is_saved_as_its_family_and_is_a_transformer(tmp_path):
    wrapped = wrap(build("llama"))
    assert isinstance(wrapped, Wrapped)
    assert isinstance(wrapped, Transformer)
    save(wrapped, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.family == "llama"
    assert_close(again.state_dict(), wrapped.state_dict(), atol=0, rtol=0)


WORDS = [f"w{number}" for number in range(23)]


def test_a_tokenizer_of_transformers_or_ours_reads_text():
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=word_level(*WORDS), bos_token="w1")
    for tokenizer in (theirs, Tokenizer(word_level(*WORDS))):
        out = run(wrap(build("gpt2"), tokenizer=tokenizer), "w5 w7")
        assert out.tokens.ids.tolist() == [[5, 7]]
    assert wrap(build("gpt2")).tokenizer is None


D, HEADS, INNER, LENGTH, VOCAB, LAYERS = 20, 4, 27, 13, 23, 2


class Mine(nn.Module):
    """A small GPT, written from memory, with a mask and separate matrices for q, k and v, one of them transposed."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(LENGTH, D)
        self.layers = nn.ModuleList(MyLayer() for _ in range(LAYERS))
        self.final = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x))


class MyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.fc = nn.Linear(D, INNER)
        self.back = nn.Linear(INNER, D)
        self.register_buffer("seen", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):
        a = self.n1(x)
        q, k, v = (each(a).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        n = x.shape[1]
        scores = (q @ k.mT / (D / HEADS) ** 0.5).masked_fill(~self.seen[:n, :n], -torch.inf)
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.back(self.fc(self.n2(x)).relu())


STACK = StackConfig(LAYERS, D, HEADS, D // HEADS, INNER, LENGTH, VOCAB, True, mlp=Plain("relu"), attention_bias=False)
CONFIG = TransformerConfig(decoder=STACK, output="untied")
BLOCK = "stacks.decoder.blocks.*"
NAMES = {
    "stacks.decoder.embed.token": "tok",
    "stacks.decoder.embed.position": "pos",
    f"{BLOCK}.norm_attn": "layers.*.n1",
    f"{BLOCK}.attn.qkv": ("layers.*.q", "layers.*.k", "layers.*.v"),
    f"{BLOCK}.attn.out": "layers.*.o",
    f"{BLOCK}.norm_mlp": "layers.*.n2",
    f"{BLOCK}.mlp.up": "layers.*.fc",
    f"{BLOCK}.mlp.down": "layers.*.back",
    "stacks.decoder.norm": "final",
    "output": "head",
}


def mine() -> Mine:
    module = Mine().eval()
    randomise(module)
    return module


def test_a_module_of_ones_own_with_a_table_of_names():
    module = mine()
    wrapped, filled = wrap(module, config=CONFIG, names=NAMES), Transformer(CONFIG)
    copy_weights(filled, module, NAMES)
    with torch.no_grad():
        for model in (wrapped, filled):
            assert_close(run(model, IDS).logits, module(IDS), atol=1e-4, rtol=1e-5)
    assert wrapped.shares.passed_over == ("layers.0.seen", "layers.1.seen")
    assert "buffers: layers.0-1.seen" in repr(wrapped.shares)
    assert {each.parameter for each in wrapped.shares.parameters if not each.shared} == {
        f"stacks.decoder.blocks.{layer}.attn.qkv.weight" for layer in range(LAYERS)
    }


def test_a_tied_module_may_name_its_output_layer_or_not():
    module = mine()
    module.head.weight = module.tok.weight
    tied = TransformerConfig(decoder=CONFIG.decoder, output="tied")
    for names in (NAMES, {ours: theirs for ours, theirs in NAMES.items() if ours != "output"}):
        source = module if "output" in names else dict(module.named_parameters())
        with torch.no_grad():
            assert_close(run(wrap(source, config=tied, names=names), IDS).logits, module(IDS), atol=1e-4, rtol=1e-5)


def test_matrices_that_lie_otherwise():
    module = mine()
    expected, tensors = run(wrap(module, config=CONFIG, names=NAMES), IDS).logits, dict(module.named_parameters())
    names = dict(NAMES)
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.fc.weight"] = tensors[f"layers.{layer}.fc.weight"].detach().T.contiguous()
        parts = [tensors.pop(f"layers.{layer}.{part}.weight").detach() for part in "qkv"]
        stacked = torch.stack([part.unflatten(0, (HEADS, -1)) for part in parts], 1)
        tensors[f"layers.{layer}.qkv.weight"] = stacked.flatten(0, 2)
    names |= {f"{BLOCK}.mlp.up": columns("layers.*.fc"), f"{BLOCK}.attn.qkv": by_head("layers.*.qkv")}
    wrapped = wrap(tensors, config=CONFIG, names=names)
    assert_close(run(wrapped, IDS).logits, expected, atol=1e-5, rtol=1e-5)
    why = {each.parameter: each.why_copied for each in wrapped.shares.parameters}
    assert why["stacks.decoder.blocks.0.mlp.up.weight"] == ""
    assert why["stacks.decoder.blocks.0.attn.qkv.weight"] == "because they lie head by head there"


def test_weights_under_our_own_names():
    built = Transformer(CONFIG)
    randomise(built)
    wrapped, copy = wrap(built.state_dict(), config=CONFIG), Transformer(CONFIG)
    assert wrapped.shares.copied == 0
    copy_weights(copy, built.state_dict())
    for model in (wrapped, copy):
        assert torch.equal(run(model, IDS).logits, run(built, IDS).logits)


def test_weights_that_do_not_fit_are_named_and_nothing_is_copied():
    module, model = mine(), Transformer(CONFIG)
    tensors = dict(module.named_parameters())
    tensors["layers.1.extra"] = torch.ones(2)
    for layer in range(LAYERS):
        del tensors[f"layers.{layer}.k.weight"]
    tensors["final.bias"] = torch.ones(3)
    tensors["pos.weight"] = torch.ones(LENGTH, D, dtype=torch.int64)
    before = copy.deepcopy(model.state_dict())
    for call in (
        lambda: wrap(tensors, config=CONFIG, names=NAMES),
        lambda: copy_weights(model, tensors, NAMES),
    ):
        assert set(refusal(call).removeprefix("these tensors: ").split("; ")) == {
            "the weights lack layers.0-1.k.weight, which the config asks for",
            "the weights hold layers.1.extra, which the config has no place for",
            "final.bias has shape (3,), but the config asks for (20,)",
            "pos.weight is stored as torch.int64",
            "expected F64, F32, F16, BF16",
        }
    assert_close(dict(model.state_dict()), dict(before), atol=0, rtol=0)


def unequal() -> dict[str, torch.Tensor]:
    """Two different tensors that the configuration says are one."""
    tensors = build("gpt2").state_dict()
    return tensors | {"transformer.wte.weight": tensors["transformer.wte.weight"] + 1}


UNEQUAL = {"model_type": "gpt2", "tie_word_embeddings": True, **variant("gpt2").fields}
MIXED_UP = {ours: theirs for ours, theirs in NAMES.items() if not ours.endswith(("norm", "qkv"))}
MIXED_UP[f"{BLOCK}.mlp.gate"] = "layers.*.fc"


@pytest.mark.parametrize(
    ("make", "settings", "expected"),
    [
        (lambda: "gpt2", {}, "models.load opens a directory or a name"),
        (lambda: Transformer(CONFIG), {}, "one of ours already"),
        (mine, {}, "got none"),
        (lambda: {"a": 1}, {"config": CONFIG}, "a is a int: expected plain tensors"),
        (dict, {"config": {}}, "lacks 'model_type'"),
        (dict, {"config": 3}, "got int"),
        (mine, {"config": {"model_type": "falcon"}}, "models.lens.wrap takes a bridge"),
        (mine, {"config": {"model_type": "gpt2"}}, "the config lacks 'n_embd'"),
        (lambda: build("gpt2"), {"names": NAMES}, "goes with config=TransformerConfig"),
        (lambda: build("gpt2"), {"tokenizer": 3}, "tokenizer: expected a Tokenizer or a fast tokenizer"),
        (lambda: build("gpt2").to("meta"), {}, "no numbers"),
        (lambda: build("gpt2", reorder_and_upcast_attn=True), {}, "reorder_and_upcast_attn True is not supported"),
        (lambda: build("llama", model="LlamaModel"), {}, "wrap the LlamaForCausalLM"),
        (lambda: build("gpt2", model="GPT2ForSequenceClassification"), {}, "the weights hold score.weight"),
        *(
            (mine, {"config": CONFIG, "names": NAMES | {f"{BLOCK}.{part}": by_head("layers.*.fc")}}, "by_head is for")
            for part in ("attn.out", "mlp.up")
        ),
        (
            mine,
            {"config": CONFIG, "names": MIXED_UP},
            "Mine: names lacks stacks.decoder.blocks.*.attn.qkv.weight, stacks.decoder.norm.bias, "
            "stacks.decoder.norm.weight, which the config asks for; names has stacks.decoder.blocks.*.mlp.gate, "
            "which the config has no place for",
        ),
        (
            lambda: build("gpt2"),
            {"tokenizer": Tokenizer(word_level(*WORDS, "w"))},
            "ids up to 23, but the embedding has 23",
        ),
        (unequal, {"config": UNEQUAL}, "these tensors: the config says that lm_head.weight and wte.weight are one, "),
    ],
)
def test_what_cannot_be_wrapped(make, settings, expected):
    message = refusal(wrap, make(), **settings)
    assert expected in message
    assert "config.json" not in message  # there is none
