"""A GGUF file as a transformers model in float32: the reference that the engine is measured against.

The weights are de-quantised with the `gguf` package, or taken from a folder that `dump_weights` wrote, so that the
engine's own 4-bit and 8-bit blocks are compared with the same blocks.
"""

from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

# Name in GGUF -> name in transformers, within a layer.
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"attn_{x}.{part}": f"self_attn.{x}_proj.{part}" for x in "qkv" for part in ("weight", "bias")},
    "attn_output.weight": "self_attn.o_proj.weight",
    **{f"ffn_{x}.weight": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufFile:
    """The metadata and tensors of a GGUF file."""

    def __init__(self, path: Path):
        self.path = path
        reader = GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.fields["general.architecture"]

    def get(self, key: str, default=None):
        return self.fields.get(f"{self.architecture}.{key}", default)

    def tensor(self, name: str) -> np.ndarray:
        """The values in float32, rows first."""
        tensor = self.tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def config(self):
        n_heads = self.get("attention.head_count")
        shared = dict(
            vocab_size=self.tensors["token_embd.weight"].shape[1].item(),
            hidden_size=self.get("embedding_length"),
            intermediate_size=self.get("feed_forward_length"),
            num_hidden_layers=self.get("block_count"),
            num_attention_heads=n_heads,
            num_key_value_heads=self.get("attention.head_count_kv", n_heads),
            head_dim=self.get("attention.key_length", self.get("embedding_length") // n_heads),
            max_position_embeddings=self.get("context_length"),
            rms_norm_eps=self.get("attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": self.get("rope.freq_base", 10000.0)},
            tie_word_embeddings="output.weight" not in self.tensors,
            attn_implementation="eager",
        )
        if self.architecture == "llama":
            return LlamaConfig(attention_bias="blk.0.attn_q.bias" in self.tensors, **shared)
        if self.architecture == "qwen2":
            return Qwen2Config(**shared)
        raise SystemExit(f"reference: the architecture {self.architecture} has no reference here: add it to config()")


def halves_from_adjacent(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of q or k whose rotary pairs are adjacent, in transformers' order: pairs half a head apart."""
    head_dim = rows.shape[0] // n_heads
    pairs = rows.reshape(n_heads, head_dim // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def weights_of_file(file: GgufFile, config) -> dict[str, np.ndarray]:
    state = {}
    for name in file.tensors:
        if name in OUTER_NAMES:
            state[OUTER_NAMES[name]] = file.tensor(name)
        elif name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            values = file.tensor(name)
            # llama's files have rotary pairs as adjacent rows, qwen2's have them as transformers does.
            if file.architecture == "llama" and rest.startswith(("attn_q.", "attn_k.")):
                heads = config.num_attention_heads if rest[5] == "q" else config.num_key_value_heads
                values = halves_from_adjacent(values, heads)
            state[f"model.layers.{layer}.{LAYER_NAMES[rest]}"] = values
    return state


def weights_of_dump(folder: Path, config) -> dict[str, np.ndarray]:
    """What `cargo run --release --example dump_weights` wrote: the engine's matrices, which hold q, k and v (gate and
    up) one below the other, with rotary pairs as adjacent rows in every architecture."""
    load = lambda name: np.load(folder / f"{name}.npy")
    q_dim = config.num_attention_heads * config.head_dim
    kv_dim = config.num_key_value_heads * config.head_dim
    state = {"model.embed_tokens.weight": load("embed_tokens.0"), "model.norm.weight": load("norm.0")}
    if (folder / "lm_head.0.npy").exists():
        state["lm_head.weight"] = load("lm_head.0")
    for layer in range(config.num_hidden_layers):
        mine = {
            "input_layernorm.weight": load(f"attn_norm.{layer}"),
            "post_attention_layernorm.weight": load(f"mlp_norm.{layer}"),
            "self_attn.o_proj.weight": load(f"o_proj.{layer}"),
            "mlp.down_proj.weight": load(f"down_proj.{layer}"),
        }
        mine["mlp.gate_proj.weight"], mine["mlp.up_proj.weight"] = np.split(load(f"gate_up_proj.{layer}"), 2)
        parts = {"weight": f"qkv_proj.{layer}"}
        if (folder / f"qkv_bias.{layer}.npy").exists():
            parts["bias"] = f"qkv_bias.{layer}"
        for part, name in parts.items():
            q, k, v = np.split(load(name), [q_dim, q_dim + kv_dim])
            mine[f"self_attn.q_proj.{part}"] = halves_from_adjacent(q, config.num_attention_heads)
            mine[f"self_attn.k_proj.{part}"] = halves_from_adjacent(k, config.num_key_value_heads)
            mine[f"self_attn.v_proj.{part}"] = v
        state |= {f"model.layers.{layer}.{name}": values for name, values in mine.items()}
    return state


def load_model(path: Path, dump: Path | None = None):
    """The model in float32, and its tokenizer."""
    file = GgufFile(path)
    config = file.config()
    model = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}[file.architecture](config).float().eval()
    state = weights_of_dump(dump, config) if dump else weights_of_file(file, config)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not (config.tie_word_embeddings and name == "lm_head.weight")]
    if missing or unexpected:
        raise SystemExit(f"reference: the weights do not fit the model (missing {missing}, unexpected {unexpected})")
    model.tie_weights()
    scale_rotary(model, file)
    return model, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def scale_rotary(model, file: GgufFile) -> None:
    """The rotary scaling of the file: a factor for each frequency (Llama 3.1), or one for all."""
    frequencies = model.model.rotary_emb.inv_freq
    if "rope_freqs.weight" in file.tensors:
        frequencies /= torch.from_numpy(file.tensor("rope_freqs.weight"))
    elif file.get("rope.scaling.type") == "linear":
        frequencies /= file.get("rope.scaling.factor")
    elif file.get("rope.scaling.type", "none") != "none":
        raise SystemExit("reference: this rotary scaling has no reference here: add it to scale_rotary()")


def encode(file_text: str, tokenizer, n_tokens: int) -> list[int]:
    """The first tokens of a text, with the tokens in front that the model wants there."""
    return tokenizer(file_text)["input_ids"][:n_tokens]


@torch.inference_mode()
def score(model, ids: list[int]) -> dict:
    """Teacher-forced: the most probable token behind each token but the last, and how probable the next one was."""
    log_probabilities = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)[:-1]
    of_next = log_probabilities.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    return {
        "ids": ids,
        "tokens": len(of_next),
        "perplexity": of_next.mean().neg().exp().item(),
        "top1": log_probabilities.argmax(-1).tolist(),
        "log_probabilities": [round(value, 6) for value in of_next.tolist()],
    }
