"""Time per image of captioning on a CPU: Hugging Face's VisionEncoderDecoderModel and ours, same weights, in one run.

    python benchmarks/captioning_speed.py                  # ViT-B/16 and GPT-2, the shape of the usual captioner
    python benchmarks/captioning_speed.py --shape small    # ViT-S/16 and a GPT-2 of 6 layers, width 384

One image of 224 x 224 at a time, pixels to ids, float32, random weights, saved by transformers and loaded by both. Both
write the same number of tokens for every image, so that none gains from an early EOS. Each runs in its own process (two
thread pools in one process slow each other down), and they take turns. Times are medians: the time that passed, and the
processor time of all threads, which other work on the machine hardly changes. Idle threads sleep in both (PASSIVE).
"the same" counts the images whose tokens are equal. transformers is needed (`pip install -e .[bench]`).
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Caption = Callable[[int, int, int], tuple[int, ...]]  # number of an image, beams, new tokens -> ids
# options of their ViT and of their GPT-2
SHAPES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "base": ({}, {}),
    "small": (
        {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
        {"n_embd": 384, "n_head": 6, "n_layer": 6},
    ),
    "tiny": (
        {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
        {
            "n_embd": 256,
            "n_head": 4,
            "n_layer": 4,
            "vocab_size": 8192,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
}
PAUSE = 0.3  # seconds between runs, in which the threads of the previous process stop spinning


def write(shape: str, folder: Path) -> dict[str, Any]:
    """Save transformers' model with random weights; returns its sizes."""
    import torch
    from transformers import (
        GPT2Config,
        VisionEncoderDecoderConfig,
        VisionEncoderDecoderModel,
        ViTConfig,
    )

    torch.manual_seed(0)
    vit, gpt2 = SHAPES[shape]
    encoder, decoder = ViTConfig(**vit), GPT2Config(**gpt2)
    end = decoder.eos_token_id
    sizes = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=end, pad_token_id=end, eos_token_id=end
    )
    model = VisionEncoderDecoderModel(sizes).eval()
    # New weights repeat one token, and such outputs are trivially the same: larger MLPs make the tokens vary.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "decoder" in name and ".mlp." in name and weight.ndim == 2:
                weight.mul_(4.0)
    model.save_pretrained(folder)
    return {
        "encoder": f"ViT width {encoder.hidden_size} depth {encoder.num_hidden_layers}, {encoder.image_size} pixels",
        "decoder": f"GPT-2 width {decoder.n_embd} depth {decoder.n_layer}, vocabulary {decoder.vocab_size}",
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def pixels(number: int) -> Any:
    """A random image, normalised."""
    import torch

    return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(number))


def by_transformers(folder: Path, threads: int) -> Caption:
    import torch
    from transformers import VisionEncoderDecoderModel

    torch.set_num_threads(threads)
    model = VisionEncoderDecoderModel.from_pretrained(folder).eval()

    def caption(number: int, beams: int, new: int) -> tuple[int, ...]:
        rows = model.generate(
            pixel_values=pixels(number),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            length_penalty=1.0,
            early_stopping=False,
        )
        return tuple(rows[0, 1:].tolist())

    return caption


def by_clearhead(folder: Path, threads: int) -> Caption:
    import torch

    import clearhead as ch
    from clearhead.decode import Plan, search

    torch.set_num_threads(threads)
    bundle = ch.load(str(folder), device="cpu")
    special = bundle.special

    def caption(number: int, beams: int, new: int) -> tuple[int, ...]:
        plan = Plan(start=special.start, end=None, beams=beams, limit=new, banned=special.ends)
        return search(bundle.model, {"images": pixels(number)}, plan)[0][0].ids

    return caption


LIBRARIES = {"ours": by_clearhead, "transformers": by_transformers}


def work(name: str, pipe: Connection, *args: Any) -> None:
    """Caption requests from a pipe until None arrives; send the seconds, the processor seconds and the ids of each."""
    caption = LIBRARIES[name](*args)
    while (request := pipe.recv()) is not None:
        start, cpu = time.perf_counter(), time.process_time()
        ids = caption(*request)
        pipe.send((time.perf_counter() - start, time.process_time() - cpu, ids))


def case(pipes: dict[str, Connection], beams: int, args: argparse.Namespace) -> dict[str, Any]:
    """The times of both for one number of beams, a new image in every round; the first two rounds warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in pipes}
    same = 0
    for number in range(2 + args.rounds):
        ids = {}
        for name, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send((number, beams, args.new))
            *seconds, ids[name] = pipe.recv()
            times[name].append(tuple(seconds))
        assert all(len(row) == args.new for row in ids.values()), ids
        same += number >= 2 and ids["ours"] == ids["transformers"]
    row: dict[str, Any] = {"beams": beams, "images": args.rounds, "same": same}
    for i, kind in enumerate(("seconds", "processor seconds")):
        median = {
            name: statistics.median(pair[i] for pair in each[2:]) for name, each in times.items()
        }
        row[kind] = median | {"ratio": median["transformers"] / median["ours"]}
    return row


def line(row: dict[str, Any]) -> str:
    parts = [
        f"{kind}: ours {times['ours']:.3f}, transformers {times['transformers']:.3f} ({times['ratio']:.2f}x)"
        for kind, times in row.items()
        if kind.endswith("seconds")
    ]
    return f"beams {row['beams']}: {'; '.join(parts)}; {row['same']} of {row['images']} the same"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--new", type=int, default=20, help="tokens per caption")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=9, help="timed images")
    parser.add_argument(
        "--threads", type=int, help="of each library; the default of torch if not given"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not find_spec("transformers"):
        sys.exit("this benchmark needs transformers: pip install -e .[bench]")
    import torch

    threads = args.threads or torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        sizes = write(args.shape, Path(folder))
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        start, pipes, workers, rows = multiprocessing.get_context("spawn"), {}, [], []
        for name in LIBRARIES:
            pipes[name], theirs = start.Pipe()
            workers.append(
                start.Process(target=work, args=(name, theirs, Path(folder), threads), daemon=True)
            )
            workers[-1].start()
        if not args.json:
            print(
                f"{sizes['encoder']}; {sizes['decoder']}; {args.new} tokens, {threads} threads",
                flush=True,
            )
        for beams in args.beams:
            rows.append(row := case(pipes, beams, args))
            if not args.json:
                print(line(row), flush=True)
        for pipe in pipes.values():
            pipe.send(None)
        for worker in workers:
            worker.join()
    if args.json:
        print(
            json.dumps(
                {"threads": threads, "torch": torch.__version__, **sizes, "rows": rows}, indent=1
            )
        )


if __name__ == "__main__":
    main()
