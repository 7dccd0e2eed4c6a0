"""Where the model that a recipe trains comes from: drawn at random by its architecture, or loaded and gone on with."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from interp import InputError, Tokenizer, Transformer, TransformerConfig
from interp.errors import inside
from interp.transformer import with_parts
from models.huggingface import weights_digest
from models.huggingface.loader import described, read_tokenizers
from models.initialisation import initialise
from models.recipes.architecture import Architecture, Kind
from models.recipes.data import Kind as Data
from models.recipes.data import check_sources, read_texts
from models.recipes.text_sources import digest_of
from models.recipes.vocabulary import Vocabulary, start_of
from models.sources import LENS, directory_of, load


@dataclass(frozen=True)
class Fresh:
    """Weights drawn at random, and tokenizers made of the data or read from files."""

    architecture: Architecture
    tokenizer: Vocabulary
    target_tokenizer: Vocabulary | None  # of a decoder beside an encoder, where it differs
    table: Mapping[str, Any]  # [model], as it was given

    @property
    def kind(self) -> Kind:
        """The stacks that there are."""
        return self.architecture.kind

    @property
    def n_ctx(self) -> int:
        """The longest text that all stacks can read."""
        return self.architecture.n_ctx

    def check(self, source: str, data: Mapping[str, Data]) -> None:
        """Refuse parts, sizes and vocabularies that do not fit together."""
        stacks = self.architecture.stacks
        for place, vocabulary in (("tokenizer", self.tokenizer), ("target_tokenizer", self.target_tokenizer)):
            check_sources(source, f"[{place}].texts", vocabulary.texts if vocabulary else (), data)
        if self.target_tokenizer is not None and len(stacks) < 2:
            raise InputError(f"{source}: [target_tokenizer] is of what a decoder writes for an encoder: leave it out")
        if self.architecture.whole.get("output") == "none":
            raise InputError(f'{source}: [model].output is "none": a model without an output layer foretells nothing')
        sizes = {}
        for stack, vocabulary in zip(stacks, (self.tokenizer, self.target_tokenizer or self.tokenizer), strict=False):
            if (tokenizer := vocabulary.ready()) is not None:
                sizes[stack] = tokenizer.d_vocab
            elif vocabulary.d_vocab is not None:
                sizes[stack] = vocabulary.d_vocab
        with inside(f"{source}: [model]"):
            self.architecture.check(sizes)

    def model(self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path, seed: int) -> Transformer:
        """The untrained model, with tokenizers.

        Raises:
            InputError: too little text for a tokenizer, or a vocabulary that does not fit; the disk is full.
        """
        source, written = self._tokenizers(data, digests, cache)
        tokenizers = [each for each in (source, written) if each is not None]
        sizes = {stack: each.d_vocab for stack, each in zip(self.architecture.stacks, tokenizers, strict=True)}
        start = end = None
        if written is not None:
            start, end = start_of(written), written.suffix[-1] if written.suffix else None
            if end is None:
                raise InputError("a text that is written ends in a token of its own: the tokenizer adds none")
        with inside("[model]"):
            config = self.architecture.config(sizes, start, end)
        model = Transformer(config, source, None if written is source else written)
        initialise(model, seed, self.architecture.initial)
        return model

    def _tokenizers(
        self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path
    ) -> tuple[Tokenizer, Tokenizer | None]:
        """What tokenizes for the first stack and, where there is an encoder and a decoder, for the last."""
        paired, mask = self.kind == "encoder-decoder", self.kind == "encoder"
        separate = self.target_tokenizer is not None

        def make(vocabulary: Vocabulary, *sides: int, mask: bool = False) -> Tokenizer:
            sources = {name: kind for name, kind in data.items() if name in (vocabulary.texts or data)}
            chosen_digests = {name: digests[name] for name in sources}

            def texts() -> Iterator[str]:
                return (text for side in sides for text in read_texts(sources, digests, cache, side))

            return vocabulary.make(texts, f"{digest_of(chosen_digests)} {sides}", cache, mask=mask, paired=paired)

        with inside("[tokenizer]"):
            first = make(self.tokenizer, *((0, 1) if paired and not separate else (0,)), mask=mask)
        if self.target_tokenizer is None:
            return first, first if paired else None
        with inside("[target_tokenizer]"):
            return first, make(self.target_tokenizer, 1)

    def facts(self) -> dict[str, Any]:
        """None: configuration and tokenizers say all."""
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
    """A model that was trained before, with its own tokenizers: `[model] start`."""

    start: str  # as `models.load` takes it

    @cached_property
    def _loaded(self) -> tuple[TransformerConfig, Tokenizer | None]:
        """What its files say it is; weights are read when it is trained."""
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
        """Refuse a model that is not there, that another library runs, or that lacks an output layer or a tokenizer."""
        with inside(f"{source}: [model].start"):
            if self.start.startswith(LENS):
                raise InputError(f"TransformerLens runs {self.start}: leave {LENS} out to train our own")
            config, tokenizer = self._loaded
            if config.output == "none":
                raise InputError(f"{self.start} has no output layer: it foretells nothing")
            if tokenizer is None:
                raise InputError(f"{self.start} has no tokenizer: give its directory a tokenizer.json")
            if self.kind == "encoder" and tokenizer.mask_id is None:
                raise InputError(
                    f"{self.start} learns hidden words, and its tokenizer has no token to hide them behind"
                )

    def model(self, data: Mapping[str, Data], digests: Mapping[str, str], cache: Path, seed: int) -> Transformer:
        """The model, read anew for every run: training changes it."""
        return with_parts(load(self.start), "training")

    def facts(self) -> dict[str, Any]:
        """Which weights it begins with."""
        return {"start": weights_digest(directory_of(self.start))}

    def tables(self) -> dict[str, Any]:
        """The table `[model]`."""
        return {"model": {"start": self.start}}


Origin = Fresh | Loaded
