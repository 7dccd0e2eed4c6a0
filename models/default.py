"""The default model and its recipe: `python -m models.default OUT` trains it again, in minutes on two cores.

A small Llama-shaped decoder learns to read generated stories, and to copy random segments that repeat. Heads form by
steps rather than by tokens, so a first phase takes many small steps, most of them on repeats; a second phase reads
stories in larger batches while the learning rate falls.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from interp import StackConfig, TokenBatch, Tokenizer, Transformer, TransformerConfig
from interp.config import Gated, RMSNorm, Rotary
from interp.initialise import initialise
from models.huggingface import save
from models.stories import stories

START = "<s>"
IGNORED = -100  # what cross_entropy leaves out


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    n_layers: int = 2
    d_model: int = 128
    n_heads: int = 8
    d_mlp: int = 344
    d_vocab: int = 640
    n_ctx: int = 256
    row: int = 128  # tokens a row in training
    stories: int = 12_000
    story_seed: int = 1_000  # apart from the seeds that the corpora of the analyses use
    seed: int = 0
    learning_rate: float = 2e-3
    forming_steps: int = 4_000  # many small steps, mostly on repeats
    forming_rows: int = 12
    forming_repeats: float = 0.6
    reading_steps: int = 2_400  # larger steps, mostly on stories, the rate falling to nothing
    reading_rows: int = 24
    reading_repeats: float = 0.2


def train_tokenizer(recipe: Recipe) -> Backend:
    """Byte-level BPE of the stories: any text can be read, the stories' own words are single tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.d_vocab,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((text.text for text in stories(3_000, recipe.story_seed)), trainer)
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, backend.token_to_id(START))]),
        ]
    )
    return backend


def build(recipe: Recipe, tokenizer: Tokenizer) -> Transformer:
    """The untrained model."""
    stack = StackConfig(
        n_layers=recipe.n_layers,
        d_model=recipe.d_model,
        n_heads=recipe.n_heads,
        d_head=recipe.d_model // recipe.n_heads,
        d_mlp=recipe.d_mlp,
        n_ctx=recipe.n_ctx,
        d_vocab=tokenizer.d_vocab,
        causal=True,
        norm=RMSNorm(1e-5),
        positions=Rotary(10_000.0),
        mlp=Gated("silu"),
        attention_bias=False,
    )
    model = Transformer(TransformerConfig(decoder=stack, output="tied"), tokenizer)
    initialise(model, recipe.seed)
    return model


class Rows:
    """An endless supply of training rows: stories from their start, and random segments that repeat."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer):
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(recipe.seed)
        texts = [text.text for text in stories(recipe.stories, recipe.story_seed)]
        encoded = [encoding.ids for encoding in tokenizer.backend.encode_batch(texts)]
        lengths = torch.tensor([len(ids) for ids in encoded])
        self.stream = torch.tensor([id for ids in encoded for id in ids])
        starts = lengths.cumsum(0) - lengths
        self.starts = starts[starts + recipe.row < len(self.stream)]
        self.ordinary = torch.tensor([id for id in range(tokenizer.d_vocab) if id not in tokenizer.special_ids])
        self.start = tokenizer.prefix[0]

    def batch(self, rows: int, repeats: float) -> tuple[Tensor, Tensor]:
        """Ids and targets, row x position; what cannot be foretold in a repeat (its first copy) is not a target."""
        n_repeats = int((torch.rand(rows, generator=self.generator) < repeats).sum())
        begin = self.starts[torch.randint(len(self.starts), (rows - n_repeats,), generator=self.generator)]
        read = self.stream[begin[:, None] + torch.arange(self.recipe.row)]
        targets = F.pad(read[:, 1:], (0, 1), value=IGNORED)
        copies = [self._repeats() for _ in range(n_repeats)]
        ids = torch.cat([read, *(ids[None] for ids, _ in copies)])
        return ids, torch.cat([targets, *(target[None] for _, target in copies)])

    def _repeats(self) -> tuple[Tensor, Tensor]:
        """<s> R R S S ...: segments of 6 to 40 random tokens, each twice, until the row is full."""
        row = self.recipe.row
        ids, copied = [torch.tensor([self.start])], [torch.tensor([False])]
        while sum(map(len, ids)) < row:
            length = int(torch.randint(6, 41, (1,), generator=self.generator))
            segment = self.ordinary[torch.randperm(len(self.ordinary), generator=self.generator)[:length]]
            ids += [segment, segment]
            # the second copy's first token comes as a surprise too
            copied += [torch.zeros(length + 1, dtype=torch.bool), torch.ones(length - 1, dtype=torch.bool)]
        flat, known = torch.cat(ids)[:row], torch.cat(copied)[:row]
        return flat, F.pad(torch.where(known, flat, IGNORED)[1:], (0, 1), value=IGNORED)


def train(recipe: Recipe, model: Transformer, rows: Rows) -> Iterator[dict[str, float]]:
    """Train in place, telling the loss as it goes."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))
    total = recipe.forming_steps + recipe.reading_steps
    began, mean_loss = time.perf_counter(), torch.zeros(())
    for step in range(total):
        forming = step < recipe.forming_steps
        size, repeats = (
            (recipe.forming_rows, recipe.forming_repeats) if forming else (recipe.reading_rows, recipe.reading_repeats)
        )
        left = (total - step) / recipe.reading_steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / 100, left)
        ids, targets = rows.batch(size, repeats)
        logits = model(TokenBatch.from_ids(ids))
        assert logits is not None
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss = mean_loss + loss.detach()
        if (step + 1) % 100 == 0:
            yield {"step": step + 1, "loss": float(mean_loss) / 100, "seconds": time.perf_counter() - began}
            mean_loss = torch.zeros(())


def main(out: str) -> None:
    """Train the default model and write it to the directory `out`."""
    recipe = Recipe()
    torch.manual_seed(recipe.seed)
    tokenizer = Tokenizer(train_tokenizer(recipe))
    model = build(recipe, tokenizer)
    rows = Rows(recipe, tokenizer)
    model.train()
    curve = []
    for point in train(recipe, model, rows):
        print(json.dumps(point), flush=True)
        curve.append(point)
    model.eval()
    save(model, Path(out), family="llama")
    (Path(out) / "training.json").write_text(json.dumps({"recipe": asdict(recipe), "curve": curve}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
