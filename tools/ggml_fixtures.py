"""Makes tests/fixtures/ggml: blocks of each GGML type and the values that the `gguf` package reads from them.

    pip install gguf numpy && python tools/ggml_fixtures.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FOLDER = Path(__file__).parent.parent / "tests" / "fixtures" / "ggml"
# Where each type has its 16-bit scales, and how large they are to be: random codes, sensible scales.
SCALES = {
    Type.Q4_0: [(0, 0.02)],
    Type.Q4_1: [(0, 0.02), (2, -0.15)],
    Type.Q5_0: [(0, 0.01)],
    Type.Q5_1: [(0, 0.01), (2, -0.15)],
    Type.Q8_0: [(0, 0.001)],
    Type.Q4_K: [(0, 0.0006), (2, 0.005)],
    Type.Q5_K: [(0, 0.0003), (2, 0.005)],
    Type.Q6_K: [(208, 0.0001)],
}
N = 1024


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2026)
    for kind in [Type.F32, Type.F16, Type.BF16, *SCALES]:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if kind in SCALES:
            blocks = random.integers(0, 256, (N // elements, size), dtype=np.uint8)
            for at, scale in SCALES[kind]:
                scales = (scale * random.uniform(0.5, 1.5, N // elements)).astype("<f2")
                blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
            data = blocks.reshape(1, -1)
        else:
            data = gguf.quantize(random.normal(0, 0.02, (1, N)).astype(np.float32), kind)
        values = gguf.dequantize(data, kind).astype("<f4")
        assert values.size == N and np.isfinite(values).all()
        name = kind.name.lower()
        (FOLDER / f"{name}.bin").write_bytes(data.tobytes())
        (FOLDER / f"{name}.values").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
