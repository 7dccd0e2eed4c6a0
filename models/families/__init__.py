"""Which families of models are known? Each says how it writes its configuration and names its weights."""

from models.families import bart, bert, gemma, gpt, interp_format, llama, modernbert, t5
from models.families.family import Family, Theirs, by_head, columns, one_row, rows

__all__ = ["FAMILIES", "Family", "Theirs", "by_head", "columns", "one_row", "rows"]

_FOREIGN = [each for module in (bart, bert, gemma, gpt, llama, modernbert, t5) for each in module.FAMILIES]
FAMILIES: dict[str, Family] = {
    **{family.name: family for family in sorted(_FOREIGN, key=lambda family: family.name)},
    "interp": interp_format.FAMILY,  # last, because it can express everything
}
__dir__ = __all__.copy  # `dir()` gives what a user may call
