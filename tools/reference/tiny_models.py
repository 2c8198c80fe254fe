"""Makes tests/fixtures/models: tiny models that have learned one text, and what transformers says of them.

    python tools/reference/tiny_models.py        a minute or two

Each model has real parts on a small scale: a byte-level BPE tokenizer of 300 tokens, a chat template, grouped-query
attention, and weights in the types that the engine holds exactly. They are trained, not random, so that their
predictions are clear-cut and a test of them means something: they know the start of the lighthouse text by heart and
answer three questions. The expected numbers come from transformers in float32, on the de-quantised weights of the
finished file.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gguf_model import LAYER_NAMES, OUTER_NAMES, encode, load_model, score

FIXTURES = Path(__file__).resolve().parent.parent.parent / "tests/fixtures"
TEXT = (FIXTURES / "text/lighthouse.txt").read_text(encoding="utf-8")
LEARNED = TEXT[:400]  # what there is room for in so few weights
QUESTIONS = {
    "Where is the lighthouse?": "At Carrow Point.",
    "Who was the last keeper?": "A man called Ellis.",
    "What colour were the lamps?": "They were green, café green ☂.",
}
N_SCORED = 320  # the learned part, and some text that the model has not seen
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 300
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# How the vocabulary's first cut is made; the names are llama.cpp's.
SPLITS = {
    "smollm": [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "qwen2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
# By the ending of a tensor's name; the first that fits. Others are F32, as norms and biases are in real files.
MODELS = {
    "tiny-llama": dict(
        shape=dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        pre="smollm",
        types={
            "token_embd.weight": Type.Q8_0,
            "attn_k.weight": Type.Q8_0,
            "attn_q.weight": Type.Q8_0,
            "attn_v.weight": Type.Q8_0,
            "attn_output.weight": Type.Q4_1,
            "ffn_down.weight": Type.Q4_1,
            "ffn_gate.weight": Type.Q4_0,
            "ffn_up.weight": Type.Q4_0,
        },
        tied=True,
        theta=10000.0,
    ),
    # Odd on purpose: heads of 24, three query heads to a key-value head, an untied head, biases.
    "tiny-qwen2": dict(
        shape=dict(hidden_size=96, intermediate_size=96, num_attention_heads=4, num_key_value_heads=1, head_dim=24),
        pre="qwen2",
        types={"weight": Type.Q8_0},
        tied=False,
        theta=1000000.0,
    ),
}


def make_tokenizer(pre: str) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(SPECIALS)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def lessons(tokenizer: Tokenizer) -> list[list[int]]:
    """Everything the model learns: the start of the text, and the conversations."""
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>"
    texts = [LEARNED, *(chat.format(*pair) for pair in QUESTIONS.items())]
    return [tokenizer.encode(text).ids for text in texts]


def make_model(recipe: dict):
    shared = dict(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": recipe["theta"]},
        tie_word_embeddings=recipe["tied"],
        **recipe["shape"],
    )
    if recipe["pre"] == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shared)).float()
    return LlamaForCausalLM(LlamaConfig(**shared)).float()


def train(model, sequences: list[list[int]], n_steps: int = 400) -> float:
    width = max(map(len, sequences))
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = labels[row, : len(sequence)] = torch.tensor(sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=n_steps)
    model.train()
    for _ in range(n_steps):
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            # Small noise on the weights makes room for what the blocks of the file round away.
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter += torch.randn_like(parameter) * parameter.abs().mean() * 0.01
    return loss.item()


def adjacent_from_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of q or k as llama's GGUF files have them: rotary pairs are adjacent."""
    half = rows.shape[0] // n_heads // 2
    return rows.reshape(n_heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(model, architecture: str) -> dict[str, np.ndarray]:
    state = {name: values.detach().numpy() for name, values in model.state_dict().items()}
    tensors = {ours: state[theirs] for ours, theirs in OUTER_NAMES.items() if theirs in state}
    if model.config.tie_word_embeddings:
        tensors.pop("output.weight", None)
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in LAYER_NAMES.items():
            values = state.get(f"model.layers.{layer}.{theirs}")
            if values is None:
                continue
            if architecture == "llama" and ours.startswith(("attn_q.", "attn_k.")):
                config = model.config
                heads = config.num_attention_heads if ours[5] == "q" else config.num_key_value_heads
                values = adjacent_from_halves(values, heads)
            tensors[f"blk.{layer}.{ours}"] = values
    return tensors


def write(path: Path, model, tokenizer: Tokenizer, recipe: dict) -> None:
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(recipe["theta"])

    spelling = {id: token for token, id in tokenizer.get_vocab().items()}
    tokens = [spelling[id] for id in range(VOCAB_SIZE)]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(recipe["pre"])
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    for name, values in gguf_tensors(model, architecture).items():
        fits = [kind for ending, kind in recipe["types"].items() if name.endswith(ending)]
        kind = fits[0] if fits and values.ndim == 2 else Type.F32
        data = values.astype(np.float32) if kind == Type.F32 else gguf.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def expectation(path: Path) -> dict:
    """What transformers says of the finished file."""
    model, tokenizer = load_model(path)
    expected = score(model, encode(TEXT, tokenizer, N_SCORED))
    with torch.inference_mode():
        last = model(torch.tensor([expected["ids"]])).logits[0, -1]
    expected["last_logits"] = [round(value, 4) for value in last.tolist()]
    expected["chats"] = []
    for question in QUESTIONS:
        rendered = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = torch.tensor([tokenizer(rendered)["input_ids"]])
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        mask = torch.ones_like(prompt)
        answer = model.generate(
            prompt, attention_mask=mask, max_new_tokens=60, do_sample=False, eos_token_id=end, pad_token_id=end
        )[0, prompt.shape[1] :]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        expected["chats"].append(
            {"user": question, "prompt": prompt[0].tolist(), "answer": text, "answer_ids": answer.tolist()}
        )
    return expected


def main() -> None:
    folder = FIXTURES / "models"
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the tensors are too small to share
    for name, recipe in MODELS.items():
        torch.manual_seed(2026)
        tokenizer = make_tokenizer(recipe["pre"])
        model = make_model(recipe)
        loss = train(model, lessons(tokenizer))
        path = folder / f"{name}.gguf"
        write(path, model, tokenizer, recipe)
        expected = expectation(path)
        (folder / f"{name}.json").write_text(json.dumps(expected, separators=(",", ":"), ensure_ascii=False) + "\n")
        agreement = sum(a == b for a, b in zip(expected["top1"], expected["ids"][1:])) / expected["tokens"]
        print(f"{name}: {path.stat().st_size} bytes, loss {loss:.4f}, perplexity {expected['perplexity']:.3f}, ", end="")
        print(f"text known to {agreement:.0%}, answers {[chat['answer'] for chat in expected['chats']]}")


if __name__ == "__main__":
    main()
