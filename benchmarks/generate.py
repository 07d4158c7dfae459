"""Speed of text generation: ours beside transformers' generate with the same weights, in one run.

    python benchmarks/generate.py --device cuda    # a 1.1B Llama and GPT-2 124M, bfloat16, batches of 1 and 64
    python benchmarks/generate.py --device cpu     # SmolLM2-135M and GPT-2, float32 and int8, batches of 1 and 8

Weights are random, with the shapes of these models; all decode greedily, and a fixed number of tokens, so that none
gains from an early EOS. On a GPU transformers uses its static cache and its compiled step. On a CPU llama.cpp
(llama-cpp-python, Q8_0, batches of 1) and CTranslate2 (float32 and int8) are measured too if they are installed; each
library runs in its own process (two thread pools in one process slow each other down), and they take turns.

"whole" includes the prefill of the prompt; "writing" is the time per token without it: the difference to generating a
single token. Times are medians of interleaved rounds. "same" is the share of ids before the first that differs from
transformers': in bfloat16, and with 8-bit weights, two tokens of almost equal logits may change places.
"""

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import clearhead as ch
from clearhead.decode import Plan, search

# prompts and number of new tokens -> new tokens
Generate = Callable[[list[list[int]], int], list[list[int]]]
LLAMA = {"rms_norm_eps": 1e-5, "attention_bias": False, "max_position_embeddings": 2048}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-1.1b": {
        **LLAMA,
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        **LLAMA,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "gpt2-124m": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
    },
    "tiny": {
        **LLAMA,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 300,
        "tie_word_embeddings": True,
    },
    "tiny-gpt2": {"vocab_size": 300, "n_positions": 1024, "n_embd": 64, "n_layer": 2, "n_head": 4},
}


def random_model(shape: str, dtype: torch.dtype, device: str) -> Any:
    """transformers' model of a shape, with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        if "gpt2" in shape:
            model: Any = GPT2LMHeadModel(
                GPT2Config(**SHAPES[shape], bos_token_id=0, eos_token_id=0)
            )
        else:
            model = LlamaForCausalLM(LlamaConfig(**SHAPES[shape], bos_token_id=0, eos_token_id=0))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model.to(dtype).eval()


def write_folder(model: Any, folder: Path) -> None:
    """Save the model as a Hugging Face folder, with a tokenizer whose tokens are t0, t1, ..."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokens = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="t0", eos_token="t0", unk_token="t0"
    ).save_pretrained(folder)


def by_clearhead(folder: Path, device: str, dtype: str) -> Generate:
    model = ch.load(folder, device=device, dtype=dtype).model

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        return [
            list(row[0].ids) for row in search(model, {}, Plan(start=prompts, end=None, limit=new))
        ]

    return generate


def by_transformers(model: Any, static: bool) -> Generate:
    options = {"cache_implementation": "static"} if static else {}

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=model.device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            **options,
        )
        return out[:, ids.shape[1] :].tolist()

    return generate


def by_ctranslate2(folder: Path, kind: str) -> Generate:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    out = TransformersConverter(str(folder)).convert(
        str(folder / f"ct2-{kind}"), quantization=kind, force=True
    )
    generator = ctranslate2.Generator(
        out, device="cpu", compute_type=kind, inter_threads=1, intra_threads=torch.get_num_threads()
    )

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        words = [[f"t{i}" for i in prompt] for prompt in prompts]
        results = generator.generate_batch(
            words, max_length=new, min_length=new, sampling_topk=1, include_prompt_in_result=False
        )
        return [one.sequences_ids[0] for one in results]

    return generate


def by_llama_cpp(folder: Path) -> Generate:
    """One prompt at a time, which is all that its Python package supports."""
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    llama = Llama(
        str(folder / "q8_0.gguf"),
        n_ctx=1024,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        out = []
        for prompt in prompts:
            llama.reset()
            steps = llama.generate(prompt, temp=0.0, reset=True)
            out.append([token for token, _ in zip(steps, range(new), strict=False)])
        return out

    return generate


def write_gguf(model: Any, path: Path) -> None:
    """Write a Llama for llama.cpp: matrices in Q8_0, norms in float32, no vocabulary."""
    import gguf

    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, value in model.state_dict().items():
        bare = name.removesuffix(".weight")
        if bare == "lm_head" and c.tie_word_embeddings:
            continue
        if bare in whole:
            target = whole[bare]
        else:
            _, _, layer, rest = bare.split(".", 3)
            target = f"blk.{layer}.{names[rest]}"
        x = value.float()
        # dimensions that rotate together: from two halves to neighbours
        if target.endswith(("attn_q", "attn_k")):
            heads = c.num_attention_heads if target.endswith("q") else c.num_key_value_heads
            x = x.view(heads, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if x.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{target}.weight", gguf.quants.quantize(x.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# The libraries on a CPU, each of which loads the same folder.
ON_CPU: dict[str, Callable[[Path], Generate]] = {
    "transformers": lambda folder: by_transformers(load_transformers(folder), static=False),
    "ours": lambda folder: by_clearhead(folder, "cpu", "float32"),
    "ours, int8": lambda folder: by_clearhead(folder, "cpu", "int8"),
    "CTranslate2": lambda folder: by_ctranslate2(folder, "float32"),
    "CTranslate2, int8": lambda folder: by_ctranslate2(folder, "int8"),
    "llama.cpp, Q8_0": by_llama_cpp,
}
PAUSE = 0.3  # seconds between runs, in which the threads of the previous process stop spinning


def load_transformers(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


@torch.no_grad()
def work(name: str, pipe: Connection, folder: Path, threads: int) -> None:
    """Answer requests from a pipe until it is closed."""
    torch.set_num_threads(threads)
    generate = ON_CPU[name](folder)
    with suppress(EOFError):
        while True:
            pipe.send(generate(*pipe.recv()))


def in_process(name: str, folder: Path) -> Generate:
    """Start a process that generates with one of the libraries."""
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    context.Process(
        target=work, args=(name, other_end, folder, torch.get_num_threads()), daemon=True
    ).start()
    other_end.close()

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        pipe.send((prompts, new))
        outputs: list[list[int]] = pipe.recv()
        return outputs

    return generate


def libraries(shape: str, device: str, folder: Path) -> Iterator[tuple[str, Generate, int]]:
    """The name of each library, its function, and the largest batch that it supports; all have the same weights."""
    model = random_model(shape, torch.bfloat16 if device == "cuda" else torch.float32, device)
    write_folder(model, folder)
    if device == "cuda":
        yield "transformers", by_transformers(model, static=True), 1 << 30
        yield "ours", by_clearhead(folder, device, "bfloat16"), 1 << 30
        return
    absent = () if find_spec("ctranslate2") else ("CTranslate2",)
    if find_spec("llama_cpp") and "gpt2" not in shape:
        write_gguf(model, folder / "q8_0.gguf")
    else:
        absent += ("llama.cpp",)
    del model
    for name in ON_CPU:
        if name.split(",")[0] not in absent:
            yield name, in_process(name, folder), 1 if name.startswith("llama.cpp") else 1 << 30


def same(a: list[list[int]], b: list[list[int]]) -> float:
    """The share of ids before the first that differs, over all rows."""
    equal = [
        next((i for i, (x, y) in enumerate(zip(r, s, strict=True)) if x != y), len(r))
        for r, s in zip(a, b, strict=True)
    ]
    return sum(equal) / sum(map(len, a))


def line(row: dict[str, Any]) -> str:
    text = f"{row['shape']:13s} {row['batch']:3d} {row['library']:18s}"
    for what in ("writing", "whole"):
        text += f" {what} {row[f'{what}_tokens_per_second']:9.1f} tokens/s {row[f'{what}_to_transformers']:6.2f}x  "
    return f"{text} same {row['same']:.0%}"


def compare(shape: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all libraries with all batch sizes; print and return a row each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        measured = list(libraries(shape, args.device, Path(folder)))
        for batch in args.batch:
            torch.manual_seed(1)
            prompts = torch.randint(1, SHAPES[shape]["vocab_size"], (batch, args.prompt)).tolist()
            fitting = {name: generate for name, generate, most in measured if batch <= most}
            # compiles, warms up
            outputs = {name: generate(prompts, args.new) for name, generate in fitting.items()}
            for _ in range(args.warm):
                for generate in fitting.values():
                    generate(prompts, args.new)
                    generate(prompts, 1)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in fitting}
            for _ in range(args.rounds):
                for name, generate in fitting.items():
                    gc.collect()
                    time.sleep(PAUSE if args.device == "cpu" else 0.0)
                    start = time.perf_counter()
                    generate(prompts, args.new)
                    middle = time.perf_counter()
                    generate(prompts, 1)
                    times[name].append((middle - start, time.perf_counter() - middle))
            for name, pairs in times.items():
                whole = statistics.median(a for a, _ in pairs)
                write = statistics.median((a - b) / (args.new - 1) for a, b in pairs)
                rows.append(
                    {
                        "shape": shape,
                        "batch": batch,
                        "library": name,
                        "whole_tokens_per_second": batch * args.new / whole,
                        "writing_tokens_per_second": batch / write,
                        "same": same(outputs["transformers"], outputs[name]),
                    }
                )
            new_rows = rows[-len(times) :]
            first = {row["library"]: row for row in new_rows}["transformers"]
            for row in new_rows:
                for what in ("whole", "writing"):
                    key = f"{what}_tokens_per_second"
                    row[f"{what}_to_transformers"] = row[key] / first[key]
                if not args.json:
                    print(line(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--shape", nargs="*", choices=[*SHAPES], help="models; by default those named above"
    )
    parser.add_argument(
        "--batch",
        type=int,
        nargs="*",
        help="batch sizes; 1 and 64 on a GPU, 1 and 8 on a CPU if not given",
    )
    parser.add_argument("--prompt", type=int, default=512, help="tokens per prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate, 2 or more")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; the median is printed")
    parser.add_argument("--warm", type=int, default=1, help="rounds before those that are timed")
    parser.add_argument("--threads", type=int, help="CPU threads; all if not given")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    if not find_spec("transformers"):
        sys.exit("this benchmark needs transformers: pip install -e .[bench]")
    for package in ("ctranslate2", "llama_cpp"):
        if args.device == "cpu" and not find_spec(package):
            print(f"{package} is not installed, and left out", file=sys.stderr)
    args.batch = args.batch or ([1, 64] if args.device == "cuda" else [1, 8])
    shapes = args.shape or (
        ["llama-1.1b", "gpt2-124m"] if args.device == "cuda" else ["smollm2-135m", "gpt2-124m"]
    )
    machine = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    if not args.json:
        print(
            f"{machine}, prompts of {args.prompt} tokens, {args.new} new tokens, torch {torch.__version__}"
        )
    with torch.no_grad():
        rows = [row for shape in shapes for row in compare(shape, args)]
    if args.json:
        print(
            json.dumps(
                {"machine": machine, "prompt": args.prompt, "new": args.new, "rows": rows}, indent=1
            )
        )


if __name__ == "__main__":
    main()
