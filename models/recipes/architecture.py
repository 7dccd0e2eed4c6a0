"""The `[model]` table: which stacks, of which sizes and parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

from interp import InputError, StackConfig, TransformerConfig
from interp.config import Writing
from models.initialisation import Initial
from models.plain_tables import Reader

Kind = Literal["decoder", "encoder", "encoder-decoder"]
STACKS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {"decoder": ("decoder",), "encoder": ("encoder",), "encoder-decoder": ("encoder", "decoder")}
)
_FOLLOWS = {"causal", "cross_attention"}  # from the kind
_OF_STACK = {name: hint for name, hint in get_type_hints(StackConfig).items() if name not in _FOLLOWS}
_DERIVED = {"decoder", "encoder", "target_start", "writing"}  # by stacks and tokenizers
_OF_WHOLE = {name: hint for name, hint in get_type_hints(TransformerConfig).items() if name not in _DERIVED}
_PROVISIONAL = 1_000_000  # tokens, before the tokenizer is there: no check depends on how many there are


@dataclass(frozen=True)
class Architecture:
    """A model but for what its tokenizers tell: vocabularies, and how a decoder begins and ends."""

    kind: Kind
    stacks: Mapping[str, Mapping[str, Any]]  # fields of each stack, by its name
    whole: Mapping[str, Any]  # fields of the model
    initial: Initial = "normal"  # how weights are drawn

    @property
    def n_ctx(self) -> int:
        """The longest text that all stacks can read."""
        return min(fields["n_ctx"] for fields in self.stacks.values())

    def config(
        self, vocabularies: Mapping[str, int], start: int | None = None, end: int | None = None
    ) -> TransformerConfig:
        """The configuration with the vocabulary of each stack's tokenizer.

        Args:
            vocabularies: tokens by stack.
            start: what a decoder beside an encoder begins with.
            end: what ends its text.

        Raises:
            InputError: sizes that do not fit together, or a vocabulary that is smaller than the tokenizer's.
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

    def check(self, vocabularies: Mapping[str, int]) -> None:
        """Refuse what does not fit together, while some vocabularies are not known yet."""
        d_vocab = {name: vocabularies.get(name, self.stacks[name].get("d_vocab", _PROVISIONAL)) for name in self.stacks}
        self.config(d_vocab)


def architecture(table: Mapping[str, Any], reader: Reader) -> Architecture:
    """What `[model]` says: fields of stacks and of the whole; `[model.encoder]`, `[model.decoder]` go before them.

    A head is d_model / n_heads wide where `d_head` is absent.

    Raises:
        InputError: an unknown key, a wrong value, a size that is lacking.
    """
    place = "[model]"
    if "kind" not in table:
        raise InputError(f"{reader.source}: {place} lacks kind: expected one of {', '.join(STACKS)}")
    kind = reader.fitting(table["kind"], Kind, f"{place}.kind")
    stacks_of_kind = STACKS[kind] if len(STACKS[kind]) > 1 else ()
    reader.check_names(table, {"kind", "initial", *_OF_STACK, *_OF_WHOLE, *stacks_of_kind}, place)
    common = _fitting(table, _OF_STACK, reader, place)
    whole = _fitting(table, _OF_WHOLE, reader, place)
    stacks = {}
    for name in STACKS[kind]:
        inner = f"[model.{name}]"
        table_of = reader.fitting(table.get(name, {}), dict, inner) if name in stacks_of_kind else {}
        reader.check_names(table_of, _OF_STACK, inner)
        stacks[name] = _whole_heads({**common, **_fitting(table_of, _OF_STACK, reader, inner)}, reader)
    initial = reader.fitting(table.get("initial", "normal"), Initial, f"{place}.initial")
    return Architecture(kind, stacks, whole, initial)


def _fitting(table: Mapping[str, Any], hints: Mapping[str, Any], reader: Reader, place: str) -> dict[str, Any]:
    return {name: reader.fitting(each, hints[name], f"{place}.{name}") for name, each in table.items() if name in hints}


def _whole_heads(fields: dict[str, Any], reader: Reader) -> dict[str, Any]:
    reader.check_complete(StackConfig, {*fields, *_FOLLOWS, "d_head", "d_vocab"}, "[model]")
    if "d_head" not in fields:
        if fields["n_heads"] < 1 or fields["d_model"] % fields["n_heads"]:
            raise InputError(
                f"{reader.source}: [model]: heads share d_model evenly: expected a multiple of {fields['n_heads']}, "
                f"got {fields['d_model']}; or give d_head"
            )
        fields["d_head"] = fields["d_model"] // fields["n_heads"]
    return fields
