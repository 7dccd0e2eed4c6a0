"""How many tokens per second does training read, against plain PyTorch and `transformers`?

All sides train a decoder of the default model's size with the same optimizer (fused AdamW, gradients clipped) on the
same rows, in the same precision, each with and without `torch.compile`. They alternate step by step, and the faster
figure of each side counts. Only the architectures differ:

    interp, default    rotary positions, RMSNorm, gated feed-forward of 688: the default model as its recipe trains it,
                       including drawing its rows
    interp, gpt2       learned positions, LayerNorm, feed-forward of 1,024: the shape of the two below
    plain              that shape in plain PyTorch, written as nanoGPT is: one matrix for q, k and v, fused attention
    transformers       that shape as `GPT2LMHeadModel`

Tokens per second in this order (24 rows of 256, bfloat16, two cores, torch 2.13): 14,782, 13,516, 12,670 and 12,588
compiled; 8,124, 10,563, 10,643 and 8,100 not compiled.

On an accelerator we also print the share of its measured matrix peak: 6 operations per weight and token, and 12 per
layer, position, token and dimension of attention (Chowdhery 2022, appendix B), over a large matrix product's best rate.

    python -m benchmarks.training              # a few minutes on two cores
    python -m benchmarks.training --quick
    python -m benchmarks.training --device cuda --rows 128
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.console import arguments, machine, show
from benchmarks.floor import Shape, best_rate, timed
from benchmarks.peers import gpt2
from interp import StackConfig, Transformer, TransformerConfig
from interp.config import Gated, LayerNorm, Learned, Plain
from interp.training import Phase, Plan, Windows
from interp.training.objectives import Mixed
from interp.training.parallel import Processes
from interp.training.steps import Learner
from models import load
from models.initialisation import initialise

DEFAULT = load("default").config.last
GPT2 = replace(DEFAULT, d_mlp=1024, norm=LayerNorm(), positions=Learned(), mlp=Plain("gelu_tanh"), attention_bias=True)
Step = Callable[[int], object]


class Attending(nn.Module):
    """A block's attention in plain PyTorch."""

    def __init__(self, shape: StackConfig):
        super().__init__()
        self.heads = shape.n_heads
        self.qkv, self.out = nn.Linear(shape.d_model, 3 * shape.d_model), nn.Linear(shape.d_model, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        rows, row, width = x.shape
        q, k, v = (part.view(rows, row, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, -1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(z.transpose(1, 2).reshape(rows, row, width))


class PlainBlock(nn.Module):
    def __init__(self, shape: StackConfig):
        super().__init__()
        self.norm_attn, self.norm_mlp = nn.LayerNorm(shape.d_model), nn.LayerNorm(shape.d_model)
        self.attn = Attending(shape)
        self.up, self.down = nn.Linear(shape.d_model, shape.d_mlp), nn.Linear(shape.d_mlp, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm_attn(x))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class PlainModel(nn.Module):
    """GPT-2 in plain PyTorch, without sites to read or edit."""

    def __init__(self, shape: StackConfig):
        super().__init__()
        self.token, self.position = nn.Embedding(shape.d_vocab, shape.d_model), nn.Embedding(shape.n_ctx, shape.d_model)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.n_layers))
        self.norm = nn.LayerNorm(shape.d_model)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


@dataclass(frozen=True)
class Setting:
    rows: int
    row: int
    device: torch.device
    precision: str

    @property
    def plan(self) -> Plan:
        phase = Phase(10_000, self.rows, self.row)
        return Plan((phase,), schedule="constant", precision=self.precision)  # pyright: ignore[reportArgumentType]


def ours(shape: StackConfig, setting: Setting, compiled: bool) -> Step:
    """Our loop's own step, including drawing rows from a text."""
    model = Transformer(TransformerConfig(decoder=shape, output="tied")).to(setting.device)
    initialise(model, 0)
    stream = torch.randint(shape.d_vocab, (1_000_000,), generator=torch.Generator().manual_seed(0))
    data = Mixed({"text": Windows(stream.to(torch.uint16))})
    return Learner(model, data, replace(setting.plan, compile=compiled), Processes()).step


def theirs(
    model: nn.Module, logits_of: Callable[[nn.Module, Tensor], Tensor], setting: Setting, compiled: bool
) -> Step:
    """The same step for another model."""
    model = model.to(setting.device).train()
    plan = setting.plan
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=plan.learning_rate,
        betas=plan.betas,
        fused=True,
    )
    generator = torch.Generator().manual_seed(0)

    def losses(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=setting.precision == "bfloat16"):
            logits = logits_of(model, ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = torch.compile(losses, dynamic=False) if compiled else losses

    def step(_: int) -> None:
        rows = torch.randint(DEFAULT.d_vocab, (setting.rows, setting.row + 1), generator=generator).to(setting.device)
        loss_of(rows[:, :-1], rows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def sides(setting: Setting, compiled: bool) -> dict[str, Step]:
    shape = Shape(GPT2.n_layers, GPT2.n_heads, GPT2.d_model, GPT2.d_vocab)
    fixed = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) | dict.fromkeys(
        ("bos_token_id", "eos_token_id")
    )
    peer = gpt2(shape, n_positions=GPT2.n_ctx, n_inner=GPT2.d_mlp, use_cache=False, **fixed)
    return {
        "interp, default": ours(DEFAULT, setting, compiled),
        "interp, gpt2": ours(GPT2, setting, compiled),
        "plain": theirs(PlainModel(GPT2), lambda model, ids: model(ids), setting, compiled),
        "transformers": theirs(peer, lambda model, ids: model(ids).logits, setting, compiled),
    }


def measured(steps: dict[str, Step], setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side's steps. The sides alternate, so a busy moment slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 3):  # the first steps compile
        for name, step in steps.items():
            took, _ = timed(lambda step=step, turn=turn: step(turn), setting.device)
            if turn >= 3:
                seconds[name].append(took)
    return seconds


def operations(shape: StackConfig, row: int) -> int:
    """Operations per token of the forward and backward pass."""
    feed_forward = 3 if isinstance(shape.mlp, Gated) else 2
    weights = shape.n_layers * shape.d_model * (4 * shape.d_model + feed_forward * shape.d_mlp)
    return 6 * (weights + shape.d_vocab * shape.d_model) + 12 * shape.n_layers * shape.d_model * row


def main() -> None:
    parser = arguments(__doc__, quick="8 rounds instead of 30", smallest="one round, nothing compiled")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--row", type=int, default=256, help="tokens per row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    device = torch.device(options.device)
    setting = Setting(options.rows, options.row, device, options.precision)
    machine(device=options.device, rows=options.rows, row=options.row, precision=options.precision)
    best: dict[str, list[float]] = {}
    rounds = 1 if options.smallest else 8 if options.quick else 30
    for compiled in (False,) if options.smallest else (False, True):
        for side, seconds in measured(sides(setting, compiled), setting, rounds).items():
            tokens = options.rows * options.row / statistics.median(seconds)
            show(side=side, compiled=compiled, tokens_per_second=round(tokens))
            if side not in best or statistics.median(seconds) < statistics.median(best[side]):
                best[side] = seconds
    peers = {side: statistics.median(best[side]) for side in ("plain", "transformers")}
    faster = min(peers, key=lambda side: peers[side])
    # two operations per multiply-add; accelerators reach their peak only on wide products
    peak = 2 * best_rate(8192, device, torch.bfloat16) if device.type == "cuda" else None
    for side, shape in (("interp, default", DEFAULT), ("interp, gpt2", GPT2)):
        ratio = peers[faster] / statistics.median(best[side])
        line: dict[str, object] = {"side": side, "times": faster, "ratio": round(ratio, 2), "target": 1.0}
        if peak is not None:
            rate = options.rows * options.row / statistics.median(best[side]) * operations(shape, options.row)
            line["share of matrix peak"] = round(rate / peak, 3)
        show(**line)


if __name__ == "__main__":
    main()
