#!/usr/bin/env python3
"""Makes tests/fixtures/text/*.json: what transformers, tokenizers, sentencepiece and jinja2 say about a page of hard
text and about chat templates. The tests compare the engine with it.

    python3 -m venv venv && venv/bin/pip install transformers gguf tokenizers sentencepiece jinja2 protobuf
    venv/bin/python tools/text_fixtures.py smollm2-135m.gguf qwen2.5-0.5b.gguf

The two models are SmolLM2-135M-Instruct and Qwen2.5-Coder-0.5B-Instruct as GGUF files. Their vocabularies are too large
for the repository, so vocabularies.json has reduced ones (the 256 bytes, the first merges, and the merges the hard text
needs), rebuilt in the file's format with new ids. real.json has the ids of the whole vocabularies, for the test that
reads the model files.
"""

import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    GGUF_TOKENIZER_MAPPING,
    convert_gguf_tokenizer,
)
from transformers.tokenization_utils_base import generate_merges
from transformers.utils.chat_template_utils import render_jinja_template

OUT = Path(__file__).parent.parent / "tests/fixtures/text"

HARD_TEXT = [
    "",
    " ",
    "\n",
    "a",
    "Hello, world!",
    " Hello  world   again    and     again",
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX; The Quick-Brown fOx?",
    "I'm sure you're right, we've seen it, they'll say he'd go, it's John's; I'M SURE YOU'RE RIGHT, IT'S, WE'LL, 'TIS",
    "don’t use ’smart‘ “quotes” — or – dashes … please",
    "0 1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 1e-10 0xDEADBEEF ½ ² ① Ⅷ ٣٤٥ १२३ 一二三",
    "tabs\tand\t\ttabs\nnew\n\nlines\n\n\n and \r\n carriage\r\n\r\n returns \n  \n   \n",
    " " * 1 + "x" + " " * 2 + "x" + " " * 3 + "x" + " " * 17 + "x" + " " * 100 + "x" + "\t" * 9 + "x" + " \t \t ",
    "trailing spaces   ",
    "   leading spaces",
    "def fib(n: int) -> int:\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)  # slow!\n\n\nprint(fib(10))\n",
    "#include <stdio.h>\nint main(void) {\n\tfor (int i = 0; i < 10; ++i) { printf(\"%d\\n\", i); }\n\treturn 0;\n}\n",
    "<div class=\"a-b_c\"><!-- TODO: x && y || !z --></div> SELECT * FROM t WHERE a <> 'b'; $x ^= ~(y << 2) @decorator `code`",
    "https://example.com/path?query=1&other=%20#frag user@example.org C:\\Windows\\System32 ../../etc",
    "naïve café résumé Zürich Straße ÆØÅ ñandú çà İstanbul ıI ſtrange 'ſ Ǆ ǅ",
    "cafe\u0301 nai\u0308ve A\u030a \u1e9b\u0323 e\u0301\u0302 \u1100\u1161\u11a8 \u0958 Ω Å ﬁ",
    "Привет, мир! Съешь же ещё этих мягких французских булок, да выпей чаю. ПРИВЕТ",
    "Ελληνικά: η γρήγορη καφέ αλεπού · ΟΔΟΣ οδός",
    "مرحبا بالعالم، كيف حالُك؟ ١٢٣ نعم",
    "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया। ক্ষ தமிழ் ไทยไม่มีช่องว่าง ភាសាខ្មែរ မြန်မာ",
    "你好,世界!今天天气很好。我们去公园吧。1234年5月6日 漢字假名混じり文、カタカナとひらがな。한국어 문장입니다.",
    "😀 😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪 ❤️ ☺ 🫠 1️⃣ ©®™",
    "zero\u200bwidth non\u00a0breaking thin\u2009space ideographic\u3000space bom\ufeffhere line\u2028sep para\u2029sep nel\u0085x vt\x0bff\x0c",
    "control \x00 \x01 \x07 \x1b[31mred\x1b[0m \x7f \x80 \x9f soft\u00adhyphen \u202eright-to-left\u202c",
    "replacement \ufffd private \ue000 noncharacter \uffff astral \U00010348 𝕳𝖊𝖑𝖑𝖔 𐍈 \U0010ffff 𠮷",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa -------------------------------- ================ ........",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft pneumonoultramicroscopicsilicovolcanoconiosis",
    "camelCaseAndPascalCase snake_case_and_SCREAMING_CASE kebab-case x2y3z4 v1.2.3-rc.4 iPhone15Pro",
    "▁ already ▁▁ visible ▁space Ġ and Ċ of the byte alphabet ĠĠ",
    "!?!?!? ... ,,, ;;; ::: (((nested [brackets {of} all] kinds))) \"quoted 'inner' text\" <<>> //\\\\ **bold** __init__ ~~~",
    "$100 €50 £20 ¥1000 50% ±3 ×4 ÷2 ∑∫∂√∞ ≤≥≠ → ← ⇒ α²+β²=γ²",
    "mixed 中文English混合text和numbers123以及русский текст",
    " 's 't 're 've 'm 'll 'd x's x'S x'RE 1's '1 ''s \n's",
    "line one\n  line two\n\tline three\n\n\n\n    line seven  \n \n\t\n end",
    "/path/\n/path//\r\n x/\ny./\n",
]

# `{}` becomes a control token of the vocabulary.
CONTROL_TEXT = [
    "{0}",
    "{0}{1}",
    "{0}user\nHello{1}\n{0}assistant\n",
    " {0} spaces around {1} ",
    "before{0}after {1}\n\n{0}  two",
    "{0}{0}{0} x{1}{1}",
    "not quite: {0:.3} and {0:.5}",
    "日本{0}語{1}😀",
]


def control_text(first, second):
    return [text.replace("{0:.3}", first[:3]).replace("{0:.5}", first[:5]).replace("{0}", first).replace("{1}", second) for text in CONTROL_TEXT]


# --- byte-level vocabularies ---

GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
DEFAULT = [
    pre_tokenizers.Split(Regex(r"[\p{P}\$\+<=>\^~\|]+"), behavior="isolated"),
    pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), behavior="isolated"),
    pre_tokenizers.Split(Regex(r"\p{N}+"), behavior="isolated"),
    pre_tokenizers.Split(Regex(r"[0-9][0-9][0-9]"), behavior="isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
]


def pre_tokenizer(pre):
    if pre == "gpt-2":
        return GPT2
    if pre == "smollm":
        # SmolLM2's own tokenizer.json. (transformers' reader of GGUF files does not know the name, and leaves the
        # digits together.)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])
    if pre == "default":
        return pre_tokenizers.Sequence(DEFAULT)
    split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(tokens, merges, types, pre):
    """The tokenizer of a vocabulary, as its model's tokenizer.json describes it."""
    vocab = {token: index for index, token in enumerate(tokens) if types[index] != 5}
    if pre == "qwen2":
        tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]).backend_tokenizer
    else:
        ignore_merges = pre in ("llama-bpe", "tekken")
        tokenizer = Tokenizer(BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges], ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizer(pre)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in zip(tokens, types) if k == 4])
    return tokenizer


def read_gguf(path):
    fields = GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


def cases(tokenizer, texts):
    result = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        result.append(decoded({"text": text, "ids": ids}, tokenizer))
    return result


def decoded(case, tokenizer):
    """Adds what the ids decode to, where that is not the text."""
    text = tokenizer.decode(case["ids"], skip_special_tokens=True)
    return case if text == case["text"] else {**case, "decoded": text}


def reduce(metadata, full, n_first):
    """The bytes, the first merges and those the hard text needs; `(tokens, merges, types)`."""
    tokens, merges, types = (metadata["tokenizer.ggml." + key] for key in ("tokens", "merges", "token_type"))
    made_by = {}
    for index, merge in enumerate(merges):
        made_by.setdefault(merge.replace(" ", ""), index)
    wanted = set(range(n_first))
    todo = [tokens[i] for text in HARD_TEXT for i in full.encode(text, add_special_tokens=False).ids]
    todo += [merges[i].replace(" ", "") for i in range(n_first)]
    while todo:
        token = todo.pop()
        if token in made_by:
            wanted.add(made_by[token])
            todo += merges[made_by[token]].split(" ")
    merges = [merges[i] for i in sorted(wanted)]
    alphabet = sorted(bytes_to_unicode().values())
    # The same order as in the test, which puts the tokens together from the merges.
    small = alphabet + list(dict.fromkeys(m.replace(" ", "") for m in merges))
    small_types = [1] * len(small)
    for token, kind in zip(tokens, types):
        if kind in (3, 4):
            small.append(token)
            small_types.append(kind)
    small += ["[PAD0]", "[PAD1]"]
    small_types += [5, 5]
    return small, merges, small_types


def byte_level_fixture(path, name, pre, n_first, other_pres):
    metadata = read_gguf(path)
    everything = (metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"], metadata["tokenizer.ggml.token_type"])
    full = byte_level(*everything, pre)
    texts = HARD_TEXT + control_text("<|im_start|>", "<|im_end|>") + ["[PAD0] [PAD151665]"]

    # (get_gguf_tokenizer does this, but needs PyTorch.)
    names = GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    tokenizer_dict = {name: metadata["tokenizer." + key] for key, name in names if "tokenizer." + key in metadata}
    reader = convert_gguf_tokenizer("llama", tokenizer_dict)[0]
    for text in texts:
        if full.encode(text, add_special_tokens=False).ids != reader.encode(text, add_special_tokens=False).ids:
            print(f"{name}: transformers' GGUF reader differs from the model's tokenizer on {text[:60]!r}")

    tokens, merges, types = reduce(metadata, full, n_first)
    added = [[token, kind] for token, kind in zip(tokens, types) if kind in (3, 4, 5)]
    small = {
        "name": name,
        "merges": merges,
        "added": added,
        "eos": "<|im_end|>",
        "end_tokens": ["<|endoftext|>", "<|im_end|>"],
        "cases": {p: cases(byte_level(tokens, merges, types, p), texts) for p in [pre, *other_pres]},
    }
    real = {
        "name": name,
        "vocab_size": len(everything[0]),
        "cases": cases(full, texts),
        "chats": chats(metadata["tokenizer.chat_template"], "<|im_start|>", "<|im_end|>", CONVERSATIONS),
    }
    for chat in real["chats"]:
        if "text" in chat:
            chat["ids"] = full.encode(chat["text"], add_special_tokens=False).ids
    return small, real, metadata["tokenizer.chat_template"]


# --- SentencePiece ---

PROSE = """The old mill stood by the river, and its wheel had not turned since the flood. Children went there to throw
stones into the water and to tell one another stories about the miller who, they said, still walked the upper floor at
night. In the spring the swallows came back and built under the broken eaves; in the autumn the wind went through the
boards and made them sing. Nobody could say who owned it now. The lawyers in the town had papers, and the papers had
seals, but the names on them belonged to people who had sailed away a hundred years before and had never written home.
Numbers: 1, 2, 10, 42, 365, 1984, 2026. Words: running, runner, ran, walked, walking, walks, unbelievable, believable.
def main(): return [x for x in range(10) if x % 2 == 0]  # even numbers
Der alte Müller schläft. Les élèves étudient à l'école. El niño comió una manzana. Привет, мир. 你好 世界.
"""


def train_sentencepiece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE.splitlines() * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
        control_symbols=["<|user|>", "<|end|>"],
        **options,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def sentencepiece_ids(processor, specials, text):
    """Control tokens are cut out, each stretch between them is a text of its own."""
    at = min(((text.find(s), -len(s), s) for s in specials if s in text), default=None)
    if at is None:
        return processor.encode(text)
    before, special = text[: at[0]], at[2]
    rest = sentencepiece_ids(processor, specials, text[at[0] + len(special) :])
    return (processor.encode(before) if before else []) + [processor.piece_to_id(special)] + rest


def sentencepiece_fixture():
    proto = train_sentencepiece()
    kinds = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}
    fixture = {
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "types": [kinds[piece.type] for piece in proto.pieces],
        "variants": [],
    }
    specials = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>"]
    texts = HARD_TEXT + control_text("<|user|>", "<|end|>") + ["<s> a</s>", "x <unk> y", "<0x41> is not A"] + PROSE.splitlines()
    for add_space_prefix, remove_extra_whitespaces in [(True, False), (False, False), (True, True)]:
        proto.normalizer_spec.add_dummy_prefix = add_space_prefix
        proto.normalizer_spec.remove_extra_whitespaces = remove_extra_whitespaces
        proto.denormalizer_spec.add_dummy_prefix = add_space_prefix
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        if remove_extra_whitespaces:
            texts = [text for text in texts if not any(s in text for s in specials)]
        variant = {"add_space_prefix": add_space_prefix, "remove_extra_whitespaces": remove_extra_whitespaces, "cases": []}
        for text in texts:
            # SentencePiece itself takes NUL for the end of the text.
            ids = sentencepiece_ids(processor, specials, text)
            variant["cases"].append({"text": text, "ids": ids})
        if add_space_prefix and not remove_extra_whitespaces:
            check_llama_tokenizer(fixture, variant)
        fixture["variants"].append(variant)
    return fixture


def check_llama_tokenizer(fixture, variant):
    """Adds the text that transformers' LlamaTokenizer decodes, and says where its ids differ from SentencePiece's."""
    vocab = {token: index for index, token in enumerate(fixture["tokens"])}
    merges = generate_merges(vocab, dict(zip(fixture["tokens"], fixture["scores"])))
    tokenizer = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=False).backend_tokenizer
    # As LlamaConverter has it for the first Llamas.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>"]])
    for index, case in enumerate(variant["cases"]):
        if tokenizer.encode(case["text"], add_special_tokens=False).ids != case["ids"]:
            print(f"llama: transformers differs from SentencePiece on {case['text'][:60]!r}")
        variant["cases"][index] = decoded(case, tokenizer)


# --- chat templates ---

USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "You are terse. <|im_end|> & \"quoted\" 'x'"}
ASSISTANT = {"role": "assistant", "content": "  4\n"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather's <state> & \"temperature\" – é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city"}, "days": {"type": "integer", "default": 3, "minimum": 0.5}},
                "required": ["city"],
                "additionalProperties": False,
                "nothing": None,
                "empty": [{}, []],
            },
        },
    }
]
TOOL_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}],
}
TOOL_ANSWER = {"role": "tool", "name": "get_weather", "content": "{\"sunny\": true}"}
CONVERSATIONS = [
    {"messages": [USER]},
    {"messages": [SYSTEM, USER]},
    {"messages": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "Sure?\n\n  Really? 你好 😀  "}]},
    {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
    {"messages": [USER, TOOL_CALL, TOOL_ANSWER, TOOL_ANSWER], "tools": TOOLS},
    {"messages": [SYSTEM, USER], "tools": TOOLS},
    {"messages": [ASSISTANT, USER]},
    {"messages": [USER, USER]},
    {"messages": [{"role": "user", "content": ""}]},
]
SHORT = [CONVERSATIONS[i] for i in (0, 1, 2, 3, 7)]

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA32 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {#- Extract the first user message so we can plug it in here #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {{- "with its proper arguments that best answers the given prompt.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PHI35 = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
    "{% else %}{{ eos_token }}{% endif %}"
)
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n"
    "{% endif %}\n{% endfor %}"
)
# Everything templates do that is easily done otherwise.
CORNERS = r"""{# a comment #}
  {% set ns = namespace(n=0, last='') %}
{% for message in messages %}
    {% generation %}
    {{- message.content.strip() }}
    {%- endgeneration %}

    {%- if message.role == 'assistant' %}{% continue %}{% endif %}
  {% set ns.n = ns.n + 1 %}
  {%- set ns.last = message['role'] ~ '/' ~ ns.n %}
  {% if ns.n > 2 %}{% break %}{% endif %}
{{ message.content is string }} {{ message.content is sequence }} {{ message.content is mapping }} {{ message is mapping }} {{ message.content is iterable }}
{% endfor %}
{{ ns.last }} {{ true }} {{ none }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ missing }} {{ missing is defined }} {{ tools is none }}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages[-1].role }} {{ messages[::-1][0]['role'] }}
{{ 'a,b,c'.split(',')[-1] }} {{ 'a b  c'.split() | length }} {{ 'x</think>y</think>z'.split('</think>', 1)[1] }} {{ '  pad '.lstrip() }}|{{ 'xxhixx'.strip('x') }}|{{ 'Title case'.title() }} {{ 'UP'.lower() }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('c', 'd')) }} {{ 'a-b'.replace('-', '+') }}
{{ {'a': 1, 'b': [1, 2.5, none, true], 'é<&>\'"': '\n\t\\'} | tojson }} {{ [1, 'é'] | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': {}} | tojson(indent=2, sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
{{ {'k': 'v'}.items() | list }} {{ {'k': 'v'}.get('x', 'd') }} {{ dict(a=1).keys() | list }} {{ range(3) | list }} {{ ['a', true, none, 1.5] }} {{ {'a': 'it\'s'} }}
{%- macro greet(name, end='!') %}Hi {{ name }}{{ end }}{% endmacro %}
{{ greet('you') }} {{ greet('me', end='?') }} {{ 'yes' if messages else 'no' }} {{ missing | default('d') }} {{ messages | length }} {{ 'b' in 'abc' }} {{ 'content' in messages[0] }} {{ messages[0].tool_calls is defined }} {{ "%s=%d" | format("a", 3) }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ 'tag' | upper }} {{ ' t ' | trim }} {{ [3, 1, 2] | sort | first }} {{ 'a\nb' | indent(2) }}
{% for k, v in {'x': 1, 'y': 2} | dictsort %}{{ k }}{{ v }}{{ loop.index }}{{ loop.last }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}
{% raw %}{{ raw }}{% endraw %} {% filter upper %}filtered{% endfilter %} {% set block %}captured{% endset %}{{ block }} {% if add_generation_prompt -%} prompt {%- endif %}

"""


def chats(template, bos, eos, conversations):
    result = []
    for conversation in conversations:
        chat = {"add_generation_prompt": True, **conversation}
        try:
            texts, _ = render_jinja_template(
                conversations=[chat["messages"]],
                tools=chat.get("tools"),
                chat_template=template,
                add_generation_prompt=chat["add_generation_prompt"],
                bos_token=bos,
                eos_token=eos,
            )
            chat["text"] = texts[0]
        except Exception as error:
            chat["error"] = str(error)
        result.append(chat)
    return result


def template_fixture(name, template, bos, eos, conversations):
    return {"name": name, "template": template, "bos": bos, "eos": eos, "chats": chats(template, bos, eos, conversations)}


def main():
    smollm2_path, qwen2_path = sys.argv[1:3]
    random.seed(1)
    smollm2, smollm2_real, smollm2_template = byte_level_fixture(smollm2_path, "smollm2", "smollm", 600, ["gpt-2"])
    others = ["llama-bpe", "tekken", "gpt-4o", "default"]
    qwen2, qwen2_real, qwen2_template = byte_level_fixture(qwen2_path, "qwen2", "qwen2", 600, others)
    templates = [
        template_fixture("smollm2", smollm2_template, "<|im_start|>", "<|im_end|>", CONVERSATIONS),
        template_fixture("qwen2.5", qwen2_template, "<|endoftext|>", "<|im_end|>", CONVERSATIONS),
        template_fixture("llama-3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>", SHORT),
        # The date is the template's own: the engine is given none.
        template_fixture("llama-3.2", LLAMA32.replace("strftime_now is defined", "false"), "<|begin_of_text|>", "<|eot_id|>", CONVERSATIONS),
        template_fixture("llama-2", LLAMA2, "<s>", "</s>", SHORT),
        template_fixture("mistral", MISTRAL, "<s>", "</s>", SHORT),
        template_fixture("phi-3.5", PHI35, "<s>", "<|endoftext|>", SHORT),
        template_fixture("gemma-2", GEMMA2, "<bos>", "<eos>", SHORT),
        template_fixture("zephyr", ZEPHYR, "<s>", "</s>", SHORT),
        template_fixture("corners", CORNERS, "<s>", "</s>", SHORT),
    ]
    write("vocabularies.json", {"byte_level": [smollm2, qwen2], "sentencepiece": sentencepiece_fixture()})
    write("real.json", [smollm2_real, qwen2_real])
    write("templates.json", templates)


def write(name, data):
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (OUT / name).write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(text.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
