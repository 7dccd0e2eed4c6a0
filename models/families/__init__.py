"""Which families of models are known? Each says how it writes its configuration and names its weights."""

from models.families import (
    bart,
    bert,
    bloom,
    distilbert,
    electra,
    gemma,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    interp_format,
    llama,
    marian,
    mistral,
    modernbert,
    olmo2,
    opt,
    phi,
    phi3,
    qwen,
    roberta,
    smollm3,
    stablelm,
    t5,
)
from models.families.family import Family, Theirs, by_head, columns, one_row, rows

__all__ = ["FAMILIES", "Family", "Theirs", "by_head", "columns", "one_row", "rows"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(bart.FAMILY, bert.FAMILY, bloom.FAMILY, distilbert.FAMILY, electra.FAMILY, gemma.GEMMA, gemma.GEMMA2),
        *(gemma.GEMMA3, gpt2.FAMILY, gpt_neo.FAMILY, gpt_neox.FAMILY, gptj.FAMILY, llama.FAMILY, marian.FAMILY),
        *(mistral.MISTRAL, mistral.MIXTRAL, modernbert.FAMILY, olmo2.FAMILY, opt.FAMILY, phi.FAMILY, phi3.FAMILY),
        *(qwen.QWEN2, qwen.QWEN3, roberta.FAMILY, smollm3.FAMILY, stablelm.FAMILY, t5.FAMILY),
        interp_format.FAMILY,  # last, as it can say everything
    )
}
__dir__ = __all__.copy  # `dir()` gives what a user may call
