"""What transformers says of a text, in float32 on the CPU, as one JSON object.

    python tools/reference/reference.py MODEL.gguf TEXT.txt [--tokens 512] [--weights FOLDER] [--generate 20]

`top1` and `log_probabilities` have an entry for each token but the last: the most probable next token, and the
logarithm of the probability of the real next one. --weights takes the weights from a folder that
`cargo run --release --example dump_weights` wrote. --generate prints a continuation first, on stderr: sensible text
shows that the weights stand where they belong.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from gguf_model import encode, load_model, score


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", type=Path)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--tokens", type=int, default=512)
    arguments.add_argument("--weights", type=Path)
    arguments.add_argument("--generate", type=int, default=0)
    given = arguments.parse_args()

    model, tokenizer = load_model(given.model, given.weights)
    ids = encode(given.text.read_text(encoding="utf-8"), tokenizer, given.tokens)
    if given.generate:
        prompt = torch.tensor([ids[:64]])
        mask = torch.ones_like(prompt)
        continued = model.generate(prompt, attention_mask=mask, max_new_tokens=given.generate, do_sample=False)
        print(tokenizer.decode(continued[0][64:]), file=sys.stderr)
    print(json.dumps(score(model, ids)))


if __name__ == "__main__":
    main()
