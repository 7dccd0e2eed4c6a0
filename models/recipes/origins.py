"""Where does the model of a recipe come from? Its weights are drawn at random, or loaded from an earlier training."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from interp import InputError, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.config import Writing
from interp.errors import inside
from interp.transformer import with_parts
from models.huggingface import weights_digest
from models.huggingface.loader import described, read_tokenizers
from models.initialisation import Initial, initialise
from models.recipes.data import Kind as Data
from models.recipes.data import check_sources, read_texts
from models.recipes.text_sources import digest_of
from models.recipes.vocabulary import Vocabulary, start_of
from models.sources import LENS, directory_of, load

Kind = Literal["decoder", "encoder", "encoder-decoder"]
_PROVISIONAL = 1_000_000  # tokens, before the tokenizer exists; no check depends on the number


@dataclass(frozen=True)
class Fresh:
    """Weights drawn at random, and tokenizers made of the data or read from files.

    Vocabularies, and how a decoder begins and ends, depend on the tokenizers.
    """

    kind: Kind
    stacks: Mapping[str, Mapping[str, Any]]  # fields of each stack, by its name
    whole: Mapping[str, Any]  # fields of the model
    initial: Initial  # how weights are drawn
    tokenizer: Vocabulary
    target_tokenizer: Vocabulary | None  # the decoder's in an encoder-decoder, where it differs
    table: Mapping[str, Any]  # [model] as in the file

    @property
    def n_ctx(self) -> int:
        """The longest text that all stacks can read."""
        return min(fields["n_ctx"] for fields in self.stacks.values())

    def config(
        self, vocabularies: Mapping[str, int], start: int | None = None, end: int | None = None
    ) -> TransformerConfig:
        """The configuration with each stack's vocabulary, and what a decoder after an encoder starts and ends with.

        InputError if sizes do not fit together, or `d_vocab` is smaller than the tokenizer's vocabulary.
        """
        built = {}
        for name, fields in self.stacks.items():
            d_vocab = fields.get("d_vocab", vocabularies[name])
            if d_vocab < vocabularies[name]:
                raise InputError(
                    f"d_vocab {d_vocab:,} is smaller than the tokenizer's vocabulary of {vocabularies[name]:,}: leave "
                    "d_vocab out of [model], or raise it"
                )
            causal = name == "decoder"
            crossed = causal and len(self.stacks) > 1
            built[name] = StackConfig(**{**fields, "d_vocab": d_vocab}, causal=causal, cross_attention=crossed)
        writing = Writing(ends=() if end is None else (end,))
        return TransformerConfig(**built, **self.whole, target_start=start, writing=writing)

    def check(self, source: str, data: Mapping[str, Data]) -> None:
        """Refuse parts, sizes and vocabularies that do not fit together."""
        for place, vocabulary in (("tokenizer", self.tokenizer), ("target_tokenizer", self.target_tokenizer)):
            check_sources(source, f"[{place}].texts", vocabulary.texts if vocabulary else (), data)
        if self.target_tokenizer is not None and len(self.stacks) < 2:
            raise InputError(f"{source}: [target_tokenizer] is for the decoder of an encoder-decoder: leave it out")
        if self.whole.get("output") == "none":
            raise InputError(f'{source}: [model].output is "none": a model without an output layer predicts nothing')
        sizes = {}
        vocabularies = (self.tokenizer, self.target_tokenizer or self.tokenizer)
        for (stack, fields), vocabulary in zip(self.stacks.items(), vocabularies, strict=False):
            tokenizer = vocabulary.ready()
            size = vocabulary.d_vocab if tokenizer is None else tokenizer.d_vocab
            sizes[stack] = fields.get("d_vocab", _PROVISIONAL) if size is None else size
        with inside(f"{source}: [model]"):
            self.config(sizes)

    def model(self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path, seed: int) -> Transformer:
        """The untrained model, with tokenizers; InputError if there is too little text or a vocabulary does not fit."""
        source, written = self._tokenizers(data, digests, cache)
        tokenizers = [each for each in (source, written) if each is not None]
        sizes = {stack: each.d_vocab for stack, each in zip(self.stacks, tokenizers, strict=True)}
        start = end = None
        if written is not None:
            start, end = start_of(written), written.suffix[-1] if written.suffix else None
            if end is None:
                raise InputError("a target ends in its own token: this tokenizer adds none")
        with inside("[model]"):
            config = self.config(sizes, start, end)
        model = Transformer(config, source, None if written is source else written)
        initialise(model, seed, self.initial)
        return model

    def _tokenizers(
        self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path
    ) -> tuple[Tokenizer, Tokenizer | None]:
        """The tokenizer of the first stack and, in an encoder-decoder, of the last."""
        paired, separate = self.kind == "encoder-decoder", self.target_tokenizer is not None

        def make(vocabulary: Vocabulary, *sides: int) -> Tokenizer:
            sources = {name: kind for name, kind in data.items() if name in (vocabulary.texts or data)}
            chosen_digests = {name: digests[name] for name in sources}
            return vocabulary.make(
                lambda: (text for side in sides for text in read_texts(sources, digests, cache, side)),
                f"{digest_of(chosen_digests)} {sides}",
                cache,
                mask=self.kind == "encoder",
                paired=paired,
            )

        with inside("[tokenizer]"):
            first = make(self.tokenizer, *((0, 1) if paired and not separate else (0,)))
        if self.target_tokenizer is None:
            return first, first if paired else None
        with inside("[target_tokenizer]"):
            return first, make(self.target_tokenizer, 1)

    def facts(self) -> dict[str, Any]:
        """None: configuration and tokenizers say everything."""
        return {}

    def tables(self) -> dict[str, Any]:
        """The tables `[model]`, `[tokenizer]` and `[target_tokenizer]`."""
        target = self.target_tokenizer
        return {
            "model": self.table,
            "tokenizer": asdict(self.tokenizer),
            "target_tokenizer": None if target is None else asdict(target),
        }


@dataclass(frozen=True)
class Loaded:
    """A model trained before, with its own tokenizers: `[model] start`."""

    start: str  # as `models.load` takes it

    @cached_property
    def _loaded(self) -> tuple[TransformerConfig, Tokenizer | None]:
        """Its configuration and tokenizer; weights are read when it is trained."""
        directory = directory_of(self.start)
        *_, config = described(directory)
        return config, read_tokenizers(directory, config)[0]

    @property
    def kind(self) -> Kind:
        """The stacks that there are."""
        stacks = [*self._loaded[0].stacks]
        return "encoder-decoder" if len(stacks) > 1 else "decoder" if stacks == ["decoder"] else "encoder"

    @property
    def n_ctx(self) -> int:
        """The longest text that all stacks can read."""
        return min(stack.n_ctx for stack in self._loaded[0].stacks.values())

    def check(self, source: str, data: Mapping[str, Data]) -> None:
        """Refuse a model that is missing, that another library runs, or that lacks an output layer or a tokenizer."""
        with inside(f"{source}: [model].start"):
            if self.start.startswith(LENS):
                raise InputError(f"TransformerLens runs {self.start}: leave {LENS} out to train our own")
            config, tokenizer = self._loaded
            if config.output == "none":
                raise InputError(f"{self.start} has no output layer: it predicts nothing")
            if tokenizer is None:
                raise InputError(f"{self.start} has no tokenizer: give its directory a tokenizer.json")
            if self.kind == "encoder" and tokenizer.mask_id is None:
                raise InputError(f"{self.start} learns hidden words, but its tokenizer has no token to hide them")

    def model(self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path, seed: int) -> Transformer:
        """The model, read again for every run: training changes it."""
        return with_parts(load(self.start), "training")

    def facts(self) -> dict[str, Any]:
        """Which weights it begins with."""
        return {"start": weights_digest(directory_of(self.start))}

    def tables(self) -> dict[str, Any]:
        """The table `[model]`."""
        return {"model": {"start": self.start}}


Origin = Fresh | Loaded
