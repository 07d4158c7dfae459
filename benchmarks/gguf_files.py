"""Files that llama.cpp's quantiser makes of a real checkpoint: read here, by the gguf package and by llama.cpp.

    python benchmarks/fetch_checkpoints.py checkpoints
    python benchmarks/gguf_files.py checkpoints/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

For every kind of file: the types of its tensors, how many of them equal the gguf package's dequantised ones to the bit,
and the greedy answers to two questions by our model and by llama.cpp (llama-cpp-python). llama.cpp also rounds
activations to 8 bits before it multiplies them with quantised weights, so that after some tokens answers may differ:
"same" counts the tokens before the first that does, and "agree" those of llama.cpp's answer that our model would have
chosen too, given all before them.

With --float32 llama.cpp first dequantises each file: tensors are compared with what it wrote, and it answers with
these weights in float32, as our model does.

--gigabytes also times a file of random Q4_K blocks of that size: our reader and the gguf package take turns.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import keep

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.weights.gguf.file import read_file

KINDS = (
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
    "Q3_K_M", "Q2_K",
)  # fmt: skip
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?")
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
ROWS = 4096  # of a matrix of the timed file, each row of as many weights


def quantise(source: Path, path: Path, kind: str, pure: bool = False) -> None:
    """Write a file with llama.cpp's quantiser; `pure` leaves out its choice of better types for some matrices."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    prefix = "ALL" if kind == "F32" else "MOSTLY"
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{prefix}_{kind}")
    options.allow_requantize, options.pure = True, pure
    options.nthread = torch.get_num_threads()
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), options)
    if failed:
        raise SystemExit(f"{path}: llama.cpp's quantiser failed ({failed})")


def compare_tensors(path: Path, reference: Path) -> tuple[dict[str, int], int]:
    """The number of tensors of each type in a file, and how many equal the gguf package's of `reference` to the bit."""
    import gguf

    _, ours = read_file(path)
    theirs = gguf.GGUFReader(reference).tensors
    assert {tensor.name for tensor in theirs} == ours.keys()
    equal = 0
    for tensor in theirs:
        a, b = ours[tensor.name], np.float32(gguf.dequantize(tensor.data, tensor.tensor_type))
        equal += np.array_equal(a.read().reshape(-1).view(np.uint32), b.reshape(-1).view(np.uint32))
    return dict(Counter(entry.type for entry in ours.values()).most_common()), equal


@torch.no_grad()
def answer(path: Path, reference: Path, limit: int) -> dict[str, dict[str, Any]]:
    """Our answers and llama.cpp's (from the file `reference`) to each question, and how many tokens are the same."""
    import llama_cpp

    bundle = ch.load(path, device="cpu")
    (end,) = bundle.special.ends
    llama = llama_cpp.Llama(
        str(reference), n_ctx=512, n_threads=torch.get_num_threads(), verbose=False
    )
    rows = {}
    for question in QUESTIONS:
        prompt = bundle.tokens.marked(PROMPT.format(question)).tolist()
        assert (
            llama.tokenize(PROMPT.format(question).encode(), add_bos=False, special=True) == prompt
        )
        (found,) = search(bundle.model, {}, Plan(start=[prompt], end=end, limit=limit))[0]
        ours, theirs = list(found.ids), []
        for token in llama.generate(prompt, temp=0.0):
            if token == end or len(theirs) == limit:
                break
            theirs.append(token)
        chosen = bundle.model(torch.tensor([prompt + theirs]))[0, len(prompt) - 1 : -1].argmax(-1)
        rows[question] = {
            "ours": bundle.tokens.decode(ours),
            "llama.cpp": bundle.tokens.decode(theirs),
            "tokens": len(theirs),
            "same": next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                len(theirs),
            ),
            "agree": int((chosen == torch.tensor(theirs)).sum()),
        }
    return rows


def write_random(path: Path, size: float) -> None:
    """Write a file of Q4_K matrices with random blocks and ordinary scales, of about `size` gigabytes."""
    import gguf

    blocks = np.random.default_rng(0).integers(0, 256, (ROWS * ROWS // 256, 144), dtype=np.uint8)
    blocks[:, :4] = np.frombuffer(struct.pack("<ee", 1e-3, 1e-2), np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    for i in range(round(size * 1e9 / blocks.nbytes)):
        writer.add_tensor(
            f"{i}.weight", blocks.reshape(ROWS, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_K
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_ours(path: Path) -> None:
    for entry in read_file(path)[1].values():
        entry.read()


def read_theirs(path: Path) -> None:
    import gguf

    for tensor in gguf.GGUFReader(path).tensors:
        gguf.dequantize(tensor.data, tensor.tensor_type)


def time_reading(size: float, rounds: int) -> dict[str, Any]:
    """Seconds to dequantise every tensor of a large file, one after another: the processor's and by the clock."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write_random(path, size)
        times: dict[str, list[tuple[float, float]]] = {"ours": [], "gguf package": []}
        for _ in range(rounds):
            for name, read in (("ours", read_ours), ("gguf package", read_theirs)):
                began = time.process_time(), time.perf_counter()
                read(path)
                times[name].append((time.process_time() - began[0], time.perf_counter() - began[1]))
        best = {
            name: {"processor": min(t)[0], "clock": min(s for _, s in t)}
            for name, t in times.items()
        }
        return {"gigabytes": path.stat().st_size / 1e9, "seconds": best}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source",
        type=Path,
        help="a GGUF file of the Llama family, with a chat template like SmolLM2's",
    )
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS, help="names of llama.cpp's kinds of files"
    )
    parser.add_argument(
        "--pure", action="store_true", help="one type for all matrices, where their rows allow it"
    )
    parser.add_argument(
        "--float32", action="store_true", help="llama.cpp dequantises each file itself first"
    )
    parser.add_argument("--limit", type=int, default=60, help="tokens of an answer")
    parser.add_argument(
        "--gigabytes",
        type=float,
        default=0.0,
        help="size of the file of random Q4_K blocks; 0: none",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of reading that file")
    args = parser.parse_args()
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    rows = {}
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{kind}.gguf"
            quantise(args.source, path, kind, args.pure)
            reference = path
            if args.float32:
                reference = Path(folder) / "float32.gguf"
                quantise(path, reference, "F32")
            types, equal = compare_tensors(path, reference)
            rows[kind] = {
                "megabytes": path.stat().st_size / 1e6,
                "tensors": types,
                "equal_to_the_bit": equal,
            }
            rows[kind]["answers"] = answer(path, reference, args.limit)
        print(kind, rows[kind], flush=True)
    timed = time_reading(args.gigabytes, args.rounds) if args.gigabytes else {}
    print(timed)
    versions = {name: version(name) for name in ("llama-cpp-python", "gguf")}
    name = "gguf_files_float32" if args.float32 else "gguf_files"
    keep(name, source=args.source.name, files=rows, reading=timed, versions=versions)


if __name__ == "__main__":
    main()
