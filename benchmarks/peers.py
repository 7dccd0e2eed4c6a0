"""Random models of `transformers`, and the TransformerLens bridge around them, to compare with ours."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.floor import Shape


def gpt2(shape: Shape, **more: object) -> Any:
    """GPT-2 with random weights, the same each time."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": shape.layers, "n_head": shape.heads, "n_embd": shape.d_model, "vocab_size": shape.vocabulary}
    return GPT2LMHeadModel(GPT2Config(**sizes | more)).eval()


def numbers(size: int) -> Any:
    """A tokenizer of `tokenizers` whose words are the ids themselves."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({str(number): number for number in range(size)}, unk_token="0"))


def bridged(theirs: Any, tokenizer: Any = None, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """The bridge around the same weights, with readable attention.

    Args:
        theirs: a model of `transformers`, or a directory that holds one.
        tokenizer: one of `tokenizers`; by default the directory's.
        device, dtype: the bridge's.
    """
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    with TemporaryDirectory() as temporary:
        folder = theirs if isinstance(theirs, Path) else Path(temporary)
        if folder is not theirs:
            theirs.save_pretrained(folder)
        eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        eager = eager.eval().to(device, dtype)
        if tokenizer is None:
            wrapped = AutoTokenizer.from_pretrained(folder)
        else:
            first = tokenizer.id_to_token(0)
            wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=first, pad_token=first)
        return TransformerBridge.boot_transformers(
            str(folder), hf_model=eager, tokenizer=wrapped, device=device, dtype=dtype
        )
