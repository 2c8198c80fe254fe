"""Compares the engine with transformers on whole models: top-1 agreement and perplexity, as a table.

    ./x build
    cargo build --release --example dump_weights
    python tools/reference/compare.py MODEL.gguf... [--text TEXT.txt] [--tokens 512] [--backends cpu gpu]

Each model is compared twice: with the weights of the file de-quantised (`file`: what a user gets against what the file
holds), and with the engine's own blocks de-quantised (`blocks`: the engine's arithmetic alone). The two are the same
where the file's types map exactly. A row passes with a top-1 agreement of at least 95 % and a perplexity within 1 %;
`file` rows of models that were re-blocked into 4 bits are shown, and not judged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
AGREEMENT = 0.95
PERPLEXITY = 0.01


def output(command: list) -> dict:
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"compare: this failed: {' '.join(map(str, command))}")
    return json.loads(done.stdout)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="+", type=Path)
    arguments.add_argument("--text", type=Path, default=ROOT / "tests/fixtures/text/lighthouse.txt")
    arguments.add_argument("--tokens", type=int, default=512)
    arguments.add_argument("--backends", nargs="+", default=["cpu", "gpu"], choices=["cpu", "gpu"])
    arguments.add_argument("--target", type=Path, default=ROOT / "target/release", help="where the builds are")
    given = arguments.parse_args()

    print("| model | weights | backend | tokens | top-1 agreement | perplexity | reference | difference | |")
    print("|---|---|---|---|---|---|---|---|---|")
    failed = 0
    for model in given.models:
        engine = {}
        for backend in given.backends:
            command = [given.target / "forerun", "perplexity", model, given.text, "--json", "--backend", backend]
            engine[backend] = output([*command, "--max-tokens", given.tokens])
        reference = [sys.executable, Path(__file__).parent / "reference.py", model, given.text]
        reference += ["--tokens", given.tokens]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([given.target / "examples/dump_weights", model, folder], check=True)
            references = {"file": output(reference), "blocks": output([*reference, "--weights", folder])}
        exact = references["file"]["top1"] == references["blocks"]["top1"]
        for weights, wanted in references.items():
            for backend, found in engine.items():
                row, passed = compare(found, wanted)
                judged = weights == "blocks" or exact
                verdict = ("ok" if passed else "FAILED") if judged else "not judged"
                failed += judged and not passed
                print(f"| {model.stem} | {weights} | {backend} | {row} | {verdict} |", flush=True)
    return 1 if failed else 0


def compare(found: dict, wanted: dict) -> tuple[str, bool]:
    if found["ids"] != wanted["ids"]:
        raise SystemExit("compare: the engine and the reference cut the text into different tokens")
    same = sum(a == b for a, b in zip(found["top1"], wanted["top1"]))
    agreement = same / len(wanted["top1"])
    difference = found["perplexity"] / wanted["perplexity"] - 1
    row = f"{len(wanted['top1'])} | {agreement:.2%} | {found['perplexity']:.4f} | {wanted['perplexity']:.4f} "
    return row + f"| {difference:+.2%}", agreement >= AGREEMENT and abs(difference) <= PERPLEXITY


if __name__ == "__main__":
    sys.exit(main())
