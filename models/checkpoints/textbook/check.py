"""The textbook model without a line of ours: transformers reads the weights, a file has the questions.

    python models/checkpoints/textbook/check.py

It prints how often the right word is more probable than every wrong one, by what is asked, and for each kind the head
that most often looks, from the last token of the prompt, at the word that decides: its strongest attention to any token
but the first. `python -m benchmarks.textbook --write FILE` made the questions, whose words are a token each.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.inference_mode()
def main(directory: str) -> None:
    """Print a line a kind of question."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    right: dict[str, list[bool]] = defaultdict(list)
    looked: dict[str, Counter[str]] = defaultdict(Counter)
    for line in Path(directory, "questions.jsonl").read_text("utf-8").splitlines():
        asked = json.loads(line)
        encoded = tokenizer(asked["prompt"], return_tensors="pt", return_offsets_mapping=True)
        (offsets,) = encoded.pop("offset_mapping").tolist()
        ids = encoded["input_ids"]
        words = [tokenizer(f"{asked['prompt']} {word}")["input_ids"] for word in (asked["right"], *asked["wrong"])]
        first = [row[ids.shape[1]] for row in words]
        out = model(ids, output_attentions=True)
        logits = out.logits[0, -1, first]
        kinds = [asked["kind"], f"{asked['kind']} over attractors"][: 1 + asked["attractor"]]
        begin, end = asked["decides"]
        target = {at for at, (low, high) in enumerate(offsets) if low < end and high > begin}
        for kind in kinds:
            right[kind].append(bool(logits[0] > logits[1:].max()))
            for layer, pattern in enumerate(out.attentions):
                for head, choice in enumerate((pattern[0, :, -1, 1:].argmax(-1) + 1).tolist()):
                    looked[kind][f"L{layer}.H{head}"] += choice in target
    for kind, hits in sorted(right.items()):
        (head, count), *_ = looked[kind].most_common()
        n = len(hits)
        print(f"{kind}: right in {sum(hits) / n:.3f} of {n}; {head} looks at the word that decides in {count / n:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent))
