"""Speed of translation on a CPU: Hugging Face's Marian, CTranslate2 and ours with the same weights, in one run.

    python benchmarks/translate.py                    # a base-sized Marian with random weights
    python benchmarks/translate.py --width 256 --depth 3 --new 16

All decode the same number of tokens for every sentence, so that none gains from an early EOS: greedily and with 5
beams, for 1 and for 32 sentences. Each runs in its own process (two thread pools in one process slow each other down),
and they take turns; times are medians. "the same" counts the sentences whose tokens equal ours. transformers is needed
(`pip install -e .[bench]`); CTranslate2 is left out if it is not installed.
"""

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Outputs = list[tuple[int, ...]]
# sources, beams and new tokens -> the best hypotheses
Translate = Callable[[list[list[int]], int, int], Outputs]
PAUSE = 0.3  # seconds between runs, in which the threads of the previous process stop spinning


def marian(width: int, depth: int, vocab: int) -> Any:
    """transformers' Marian with random weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = MarianConfig(
        vocab_size=vocab,
        decoder_vocab_size=vocab,
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_position_embeddings=512,
        pad_token_id=vocab - 1,
        eos_token_id=0,
        decoder_start_token_id=vocab - 1,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="swish",
    )
    model = MarianMTModel(sizes).eval()
    # New weights repeat one token, and such outputs are trivially the same: larger MLPs make the tokens vary.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "decoder" in name and ".fc" in name and weight.ndim == 2:
                weight.mul_(4.0)
    return model


def words(vocab: int) -> list[str]:
    """A vocabulary of made-up words."""
    return ["</s>", "<unk>", *(f"w{i}" for i in range(2, vocab))]


def convert(model: Any, folder: Path) -> None:
    """Write the model in CTranslate2's format."""
    from ctranslate2.converters.transformers import MarianMTLoader

    loader = MarianMTLoader()
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(
        spec, words(model.config.vocab_size - 1)
    )  # without padding: CTranslate2 starts from a zero embedding
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = (
        "</s>",
        "<unk>",
        "</s>",
    )
    spec.validate()
    folder.mkdir()
    spec.save(str(folder))


def by_transformers(folder: Path, vocab: int, threads: int) -> Translate:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(threads)
    model = MarianMTModel.from_pretrained(folder / "marian").eval()

    def translate(sources: list[list[int]], beams: int, new: int) -> Outputs:
        source = torch.tensor(sources)
        rows = model.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            length_penalty=1.0,
            early_stopping=False,
        )
        return [tuple(row[1:]) for row in rows.tolist()]

    return translate


def by_clearhead(folder: Path, vocab: int, threads: int) -> Translate:
    import torch

    import clearhead as ch
    from clearhead.decode import Plan, search

    torch.set_num_threads(threads)
    bundle = ch.load(str(folder / "marian"), device="cpu")
    special = bundle.special

    def translate(sources: list[list[int]], beams: int, new: int) -> Outputs:
        source, lengths = torch.tensor(sources), torch.tensor([len(row) for row in sources])
        banned = [special.pad, *special.ends]
        plan = Plan(start=special.start, end=special.ends[0], beams=beams, limit=new, banned=banned)
        return [
            row[0].ids for row in search(bundle.model, {"source": source, "lengths": lengths}, plan)
        ]

    return translate


def by_ctranslate2(folder: Path, vocab: int, threads: int) -> Translate:
    from ctranslate2 import Translator

    translator = Translator(
        str(folder / "ctranslate2"), compute_type="float32", inter_threads=1, intra_threads=threads
    )
    names = words(vocab - 1)
    ids = {word: i for i, word in enumerate(names)}

    def translate(sources: list[list[int]], beams: int, new: int) -> Outputs:
        results = translator.translate_batch(
            [[names[i] for i in row] for row in sources],
            beam_size=beams,
            length_penalty=1.0,
            min_decoding_length=new,
            max_decoding_length=new,
        )
        return [tuple(ids[word] for word in one.hypotheses[0]) for one in results]

    return translate


LIBRARIES = {"ours": by_clearhead, "transformers": by_transformers, "ctranslate2": by_ctranslate2}


def work(name: str, pipe: Connection, *args: Any) -> None:
    """Translate requests from a pipe until None arrives; send the seconds and the outputs of each."""
    translate = LIBRARIES[name](*args)
    while (request := pipe.recv()) is not None:
        start = time.perf_counter()
        outputs = translate(*request)
        pipe.send((time.perf_counter() - start, outputs))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=512, help="width of the residual stream")
    parser.add_argument(
        "--depth", type=int, default=6, help="layers of the encoder, and of the decoder"
    )
    parser.add_argument("--vocab", type=int, default=58101, help="size of the vocabulary")
    parser.add_argument("--source", type=int, default=24, help="source tokens per sentence")
    parser.add_argument("--new", type=int, default=24, help="target tokens per sentence")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="timed rounds of batches; 4 times as many of single sentences",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import torch

    if not find_spec("transformers"):
        sys.exit("this benchmark needs transformers: pip install -e .[bench]")
    threads, names = (
        torch.get_num_threads(),
        [name for name in LIBRARIES if name == "ours" or find_spec(name)],
    )
    if "ctranslate2" not in names:
        print("ctranslate2 is not installed, and left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = marian(args.width, args.depth, args.vocab)
        model.save_pretrained(folder / "marian")
        if "ctranslate2" in names:
            convert(model, folder / "ctranslate2")
        start, pipes, rows = multiprocessing.get_context("spawn"), {}, []
        for name in names:
            pipes[name], theirs = start.Pipe()
            start.Process(
                target=work, args=(name, theirs, folder, args.vocab, threads), daemon=True
            ).start()
        for beams in (1, 5):
            for batch in (1, 32):
                rows.append(case(pipes, batch, beams, args))
                if not args.json:
                    print(line(rows[-1]), flush=True)
        for pipe in pipes.values():
            pipe.send(None)
    if args.json:
        print(json.dumps({"threads": threads, "torch": torch.__version__, "rows": rows}, indent=1))


def case(
    pipes: dict[str, Connection], batch: int, beams: int, args: argparse.Namespace
) -> dict[str, Any]:
    """The times and outputs of all libraries for one batch size and number of beams; the first round warms up."""
    uniforms = random.Random(1)
    sources = [
        [uniforms.randrange(1, args.vocab - 1) for _ in range(args.source)] for _ in range(batch)
    ]
    times: dict[str, list[float]] = {name: [] for name in pipes}
    outputs: dict[str, Outputs] = {}
    for _ in range(1 + args.rounds * (4 if batch == 1 else 1)):  # short runs vary more
        for name, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send((sources, beams, args.new))
            seconds, outputs[name] = pipe.recv()
            times[name].append(seconds)
    median = {name: statistics.median(each[1:]) for name, each in times.items()}
    others = [name for name in pipes if name != "ours"]
    same = {
        name: sum(a == b for a, b in zip(outputs[name], outputs["ours"], strict=True))
        for name in others
    }
    faster = {name: median[name] / median["ours"] for name in others}
    return {"beams": beams, "batch": batch, "seconds": median, "faster": faster, "same": same}


def line(row: dict[str, Any]) -> str:
    others = [
        f"{name} {row['seconds'][name] * 1e3:.0f} ms ({row['faster'][name]:.2f}x, {row['same'][name]} the same)"
        for name in row["faster"]
    ]
    head = (
        f"beams {row['beams']} batch {row['batch']:2d}: ours {row['seconds']['ours'] * 1e3:.0f} ms"
    )
    return ", ".join([head, *others])


if __name__ == "__main__":
    main()
