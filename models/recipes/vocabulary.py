"""Which tokens a model reads and writes: byte-level BPE of the training text, single characters, words, or a file."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from interp import InputError, Tokenizer
from interp.training import token_arrays as texts
from interp.training.whole_files import replacing
from models.huggingface import read_tokenizer
from models.recipes.text_sources import digest_of

END = "</s>"  # after a target
UNKNOWN = "<unk>"
_CHARACTER = Regex(r"[\s\S]")


@dataclass(frozen=True)
class Vocabulary:
    """A recipe's tokenizer, by exactly one of the first three fields; a file goes without texts."""

    d_vocab: int | None = None  # byte-level BPE of the training text, with so many tokens
    file: str | None = None  # a tokenizer.json
    level: Literal["characters", "words"] | None = None  # all in the training text; spaces separate words
    texts: tuple[str, ...] = ()  # sources that count as the training text; all if none is named

    def __post_init__(self) -> None:
        settings = [name for name in ("d_vocab", "file", "level") if getattr(self, name) is not None]
        if len(settings) != 1:
            raise InputError(f"expected one of d_vocab, file and level, got {' and '.join(settings) or 'none of them'}")
        if self.file is not None and self.texts:
            raise InputError("a tokenizer from a file needs no texts: leave out texts or file")

    def ready(self) -> Tokenizer | None:
        """The tokenizer in the file, None where no file is named; InputError if it is missing or damaged."""
        if self.file is None:
            return None
        path = Path(self.file)
        tokenizer = read_tokenizer(path.parent, path.name)
        if tokenizer is None:
            raise InputError(f"no tokenizer at {path}: expected a tokenizer.json")
        return tokenizer

    def make(
        self, lines: Callable[[], Iterable[str]], digest: str, cache: Path, *, mask: bool = False, paired: bool = False
    ) -> Tokenizer:
        """The tokenizer: from its file, from the folder `cache`, or trained on the texts of `lines` with this `digest`.

        `mask` adds a token that hides words. `paired` texts, for an encoder-decoder, end in `</s>` and do not begin
        with `<s>`. InputError if there is too little text for the vocabulary, or the disk is full.
        """
        if (tokenizer := self.ready()) is not None:
            return tokenizer
        place = cache / f"tokenizer-{digest_of([self.d_vocab, self.level, mask, paired, digest])[:16]}.json"
        if not place.is_file():
            backend = self._train(lines(), mask=mask, paired=paired)
            try:
                with replacing(place) as part:
                    part.write_text(backend.to_str(), "utf-8")
            except OSError as error:
                raise InputError(f"cannot write the tokenizer to {place}: {error.strerror or error}") from error
        try:
            tokenizer = read_tokenizer(place.parent, place.name)
            assert tokenizer is not None
            return tokenizer
        except InputError as error:
            raise InputError(f"{place} is damaged ({error}): remove it, and it will be made again") from error

    def _train(self, lines: Iterable[str], *, mask: bool, paired: bool) -> Backend:
        if self.d_vocab is not None:
            backend = texts.train_tokenizer(lines, self.d_vocab - paired, mask=mask).backend
            if paired:
                backend.add_special_tokens([END])
        else:
            backend = _level(lines, characters=self.level == "characters", mask=mask, paired=paired)
        template, token = (f"$A {END}", END) if paired else (f"{texts.START} $A", texts.START)
        around = processors.TemplateProcessing(template, special_tokens=[(token, backend.token_to_id(token))])
        if self.d_vocab is None:
            backend.post_processor = around
        elif paired:
            backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), around])
        return backend


def _level(lines: Iterable[str], *, characters: bool, mask: bool, paired: bool) -> Backend:
    """A tokenizer of all characters or words in the texts, the commonest first."""
    cut = pre_tokenizers.Split(_CHARACTER, "isolated") if characters else pre_tokenizers.WhitespaceSplit()
    counts: Counter[str] = Counter()
    for text in lines:
        counts.update(text if characters else text.split())
    special = [texts.START, *([END] if paired else []), *([texts.MASK] if mask else []), UNKNOWN]
    if not counts:
        raise InputError("there is no text to make a vocabulary from")
    words = [each for each, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if each not in special]
    backend = Backend(models.WordLevel({each: at for at, each in enumerate([*special, *words])}, unk_token=UNKNOWN))
    backend.pre_tokenizer = cut
    if characters:
        backend.decoder = decoders.Fuse()
    backend.add_special_tokens(special)
    return backend


def start_of(tokenizer: Tokenizer) -> int:
    """The id that the decoder's input begins with in an encoder-decoder; InputError if the vocabulary has none."""
    start = tokenizer.prefix[0] if tokenizer.prefix else tokenizer.backend.token_to_id(texts.START)
    if start is None:
        raise InputError(f'a decoder begins with its own token: expected "{texts.START}" in the vocabulary')
    return start
