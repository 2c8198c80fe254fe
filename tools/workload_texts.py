"""Cuts page texts out of freely licensed documents that Debian's packages install: a JSON line a text, on stdout.

The texts that were chosen are in workload/; this shows where they come from. It needs the packages nodejs,
rust-web-src, manpages, postgresql-client-15 and python3, or finds fewer texts.
"""

import ast
import glob
import json
import re
import subprocess
import sys

RUST = "/usr/src/rustc-1.96.0/src"
MIT = "MIT or Apache-2.0"
SOURCES = [
    ("The Rust Programming Language", MIT, f"{RUST}/doc/book/src/ch*.md", "markdown"),
    ("The Cargo Book", MIT, f"{RUST}/tools/cargo/src/doc/src/[grf]*/*.md", "markdown"),
    ("The Rustonomicon", MIT, f"{RUST}/doc/nomicon/src/*.md", "markdown"),
    ("Guide to Rustc Development", MIT, f"{RUST}/doc/rustc-dev-guide/src/*.md", "markdown"),
    ("rust-analyzer manual", MIT, f"{RUST}/tools/rust-analyzer/docs/book/src/**/*.md", "markdown"),
    ("The rustc book", MIT, f"{RUST}/doc/rustc/src/*.md", "markdown"),
    ("The Edition Guide", MIT, f"{RUST}/doc/edition-guide/src/**/*.md", "markdown"),
    ("Node.js documentation", "MIT", "/usr/share/doc/nodejs/api/*.md", "markdown"),
    ("PostgreSQL documentation", "PostgreSQL", "/usr/share/man/man7/[A-Z]*.7.gz", "man"),
    ("Linux man-pages", "verbatim man-pages licence", "/usr/share/man/man7/[a-z]*.7.gz", "man"),
    ("Python documentation", "PSF-2.0", "/usr/lib/python3*/pydoc_data/topics.py", "python"),
]


def from_markdown(text):
    """Sections of a Markdown page, as a reader sees them."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^\s*</?(Listing|figure|figcaption|img|span|div|a|details|summary)\b.*?>\s*$", "", text, flags=re.M)
    text = re.sub(r"</?[a-zA-Z][^>\n]*>", "", text)
    text = re.sub(r"^\[[^\]]+\]:.*$", "", text, flags=re.M)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]+)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"\[(`[^\]`]+`)\]", r"\1", text)
    for section in re.split(r"^(?=#{1,3} )", text, flags=re.M):
        head, _, body = section.partition("\n")
        if head.startswith("#") and "{{#" not in body and body.count("```") <= 4:
            yield head.lstrip("# ").strip("`"), unwrap(body)


def unwrap(body):
    """Joins the lines of each paragraph of prose."""
    parts = []
    for i, block in enumerate(re.split(r"(```.*?```)", body, flags=re.S)):
        if i % 2:
            parts.append(re.sub(r"^```[^\n]*", "```", block))
            continue
        for paragraph in re.split(r"\n\s*\n", block):
            lines = [line.rstrip() for line in paragraph.strip("\n").split("\n")]
            joined = re.sub(r"\n\s*(?![-*+>|#]|\d+\.)", " ", "\n".join(lines)).strip()
            parts += [joined] * bool(joined)
    return "\n\n".join(parts)


def from_man(path, licence):
    """The description of a manual page."""
    raw = subprocess.run(["zcat", path], capture_output=True, text=True, errors="replace").stdout
    if licence.startswith("verbatim") and "LICENSE_START(VERBATIM" not in raw and "Linux-man-pages-copyleft" not in raw:
        return
    if licence == "PostgreSQL" and "PostgreSQL" not in raw[:1000]:
        return
    settings = {"MANWIDTH": "1000", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    command = ["man", "-E", "UTF-8", "-P", "cat", path]
    shown = subprocess.run(command, capture_output=True, text=True, env=settings)
    text = re.sub(r".\x08", "", shown.stdout)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    name = path.rsplit("/", 1)[1].split(".")[0].replace("_", " ")
    for section in re.split(r"^(?=[A-Z])", text, flags=re.M):
        head, _, body = section.partition("\n")
        if head.strip() in ("DESCRIPTION", "NOTES"):
            lines = [re.sub(r"^\s+", "", line) for line in body.split("\n")]
            body = re.sub(r"\n{3,}", "\n\n", "\n".join(re.sub(r"[ \t]{2,}", " ", line) for line in lines)).strip()
            yield f"{name}: {head.strip().lower()}", body


def from_python(text):
    """The topics of Python's own help."""
    tree = ast.parse(text)
    for topic, body in ast.literal_eval(tree.body[0].value).items():
        body = re.sub(r"\n\*{3,}\n", "\n", body)
        title, _, rest = body.partition("\n")
        yield title.strip("* ") or topic, unwrap(re.sub(r"^   ", "  ", rest, flags=re.M))


def texts():
    seen = set()
    for book, licence, pattern, kind in SOURCES:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if kind == "man":
                sections = from_man(path, licence)
            else:
                with open(path, encoding="utf-8") as file:
                    content = file.read()
                sections = from_markdown(content) if kind == "markdown" else from_python(content)
            for title, body in sections:
                words = re.findall(r"[A-Za-z][a-z']+", body)
                prose = sum(map(len, words)) / max(len(body), 1)
                if 400 <= len(body) <= 5600 and prose > 0.68 and body not in seen:
                    seen.add(body)
                    yield {"book": book, "licence": licence, "file": path, "title": title, "text": body}


if __name__ == "__main__":
    for text in texts():
        json.dump(text, sys.stdout, ensure_ascii=False)
        print()
