#!/usr/bin/env python3
"""Checks that modes, plans and limits change nothing: the same tokens for every prompt.

    tools/agreement.py MODEL [--forerun target/release/forerun] [--prompts 10] [--max-tokens 64]

Runs `forerun run --json` for each prompt of tools/prompts.txt in each configuration, compares the tokens with those of
the first configuration, prints a table and ends with 1 if one token differs.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

CONFIGURATIONS = {
    "greedy, none": ["--mode", "greedy", "--fusion", "none"],
    "loop, none": ["--mode", "loop", "--fusion", "none"],
    "greedy, all": ["--mode", "greedy", "--fusion", "all"],
    "loop, all": ["--mode", "loop", "--fusion", "all"],
    "loop, all, default limits": ["--mode", "loop", "--fusion", "all", "--limits", "default"],
    "loop, auto": ["--mode", "loop", "--fusion", "auto"],
    "tree2": ["--mode", "tree2"],
    "tree4": ["--mode", "tree4"],
    "tree8": ["--mode", "tree8"],
    "tree16": ["--mode", "tree16"],
    "tree32": ["--mode", "tree32"],
    "adaptive": ["--mode", "adaptive"],
}


def answer(options, prompt, arguments):
    command = [options.forerun, "run", options.model, "-p", prompt, "--max-tokens", str(options.max_tokens)]
    done = subprocess.run([*command, "--context", "1024", "--json", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--forerun", default="target/release/forerun")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    prompts = pathlib.Path(__file__).with_name("prompts.txt").read_text().splitlines()[: options.prompts]
    differing = 0
    first = None
    for name, arguments in CONFIGURATIONS.items():
        answers = [answer(options, prompt, arguments) for prompt in prompts]
        tokens = [answer["tokens"] for answer in answers]
        first = first or tokens
        same = sum(a == b for a, b in zip(tokens, first))
        differing += len(tokens) - same
        gain = statistics.mean(answer["tokens_per_step"] for answer in answers)
        pace = statistics.median(answer["decode_ms_per_token"] for answer in answers)
        start = statistics.median(answer["ttft_ms"] for answer in answers)
        print(f"{name:28} {same} of {len(tokens)} prompts the same, {sum(map(len, tokens))} tokens, "
              f"{answers[0]['dispatches_per_step']} dispatches, {gain:.2f} tokens a step, "
              f"{pace:.2f} ms a token, first token {start:.0f} ms, "
              f"{answers[0]['adapter']}", flush=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
