"""How fast a CPU writes translations: Hugging Face's Marian, CTranslate2 and ours, the same weights, in one run.

    python benchmarks/translate.py                    # a base-sized Marian with random weights
    python benchmarks/translate.py --width 256 --depth 3 --new 16

All write the same number of tokens for every sentence, so that none is lucky with an early end: greedily and by 5
beams, one sentence and 32 at a time. Each has a process of its own (two libraries of threads in one make both slower),
and they take turns; times are medians. CTranslate2 (`pip install -e .[bench]`) is left out where it is not installed.
"""

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Answers = list[tuple[int, ...]]
Way = Callable[[list[list[int]], int, int], Answers]  # sources, beams, and tokens to write
PAUSE = 0.3  # seconds after which the threads of the one before no longer wait for more, and take no time of the next


def peer(width: int, depth: int, vocab: int) -> Any:
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = MarianConfig(
        vocab_size=vocab, decoder_vocab_size=vocab, d_model=width, encoder_layers=depth, decoder_layers=depth,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_position_embeddings=512, pad_token_id=vocab - 1, eos_token_id=0, decoder_start_token_id=vocab - 1,
        forced_eos_token_id=None, scale_embedding=True, activation_function="swish",
    )  # fmt: skip
    model = MarianMTModel(sizes).eval()
    # Fresh weights repeat one token for ever, and such answers are easily the same: a louder MLP goes on to others.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "decoder" in name and ".fc" in name and weight.ndim == 2:
                weight.mul_(4.0)
    return model


def words(vocab: int) -> list[str]:
    return ["</s>", "<unk>", *(f"w{i}" for i in range(2, vocab))]


def converted(model: Any, folder: Path) -> None:
    """The model as CTranslate2 wants it."""
    from ctranslate2.converters.transformers import MarianMTLoader

    loader = MarianMTLoader()
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(spec, words(model.config.vocab_size - 1))  # it starts from zeros, and has no padding
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "</s>", "<unk>", "</s>"
    spec.validate()
    folder.mkdir()
    spec.save(str(folder))


def transformers_way(folder: Path, vocab: int, threads: int) -> Way:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(threads)
    model = MarianMTModel.from_pretrained(folder / "marian").eval()

    def translate(sources: list[list[int]], beams: int, new: int) -> Answers:
        source = torch.tensor(sources)
        found = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), num_beams=beams, do_sample=False,
            min_new_tokens=new, max_new_tokens=new, length_penalty=1.0, early_stopping=False,
        )  # fmt: skip
        return [tuple(row[1:]) for row in found.tolist()]

    return translate


def our_way(folder: Path, vocab: int, threads: int) -> Way:
    import torch

    import clearhead as ch
    from clearhead.decode import Plan, search

    torch.set_num_threads(threads)
    bundle = ch.load(str(folder / "marian"), device="cpu")
    special = bundle.special

    def translate(sources: list[list[int]], beams: int, new: int) -> Answers:
        source, lengths = torch.tensor(sources), torch.tensor([len(row) for row in sources])
        found = search(
            bundle.model, {"source": source, "lengths": lengths}, Plan(start=special.start, end=special.ends[0],
            beams=beams, limit=new, banned=[special.pad, *special.ends],))  # fmt: skip
        return [row[0].ids for row in found]

    return translate


def ctranslate2_way(folder: Path, vocab: int, threads: int) -> Way:
    from ctranslate2 import Translator

    run = Translator(str(folder / "ctranslate2"), compute_type="float32", inter_threads=1, intra_threads=threads)
    names = words(vocab - 1)
    ids = {word: i for i, word in enumerate(names)}

    def translate(sources: list[list[int]], beams: int, new: int) -> Answers:
        found = run.translate_batch(
            [[names[i] for i in row] for row in sources], beam_size=beams, length_penalty=1.0,
            min_decoding_length=new, max_decoding_length=new,
        )  # fmt: skip
        return [tuple(ids[word] for word in one.hypotheses[0]) for one in found]

    return translate


WAYS = {"ours": our_way, "transformers": transformers_way, "ctranslate2": ctranslate2_way}


def work(name: str, pipe: Connection, *args: Any) -> None:
    """A process that answers until it is told nothing: how long it took, and the answers."""
    way = WAYS[name](*args)
    while (asked := pipe.recv()) is not None:
        start = time.perf_counter()
        found = way(*asked)
        pipe.send((time.perf_counter() - start, found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=58101)
    parser.add_argument("--source", type=int, default=24, help="tokens of a sentence")
    parser.add_argument("--new", type=int, default=24, help="tokens to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import torch

    threads, names = torch.get_num_threads(), [name for name in WAYS if name == "ours" or find_spec(name)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = peer(args.width, args.depth, args.vocab)
        model.save_pretrained(folder / "marian")
        if "ctranslate2" in names:
            converted(model, folder / "ctranslate2")
        start, pipes, rows = multiprocessing.get_context("spawn"), {}, []
        for name in names:
            pipes[name], theirs = start.Pipe()
            start.Process(target=work, args=(name, theirs, folder, args.vocab, threads), daemon=True).start()
        for beams in (1, 5):
            for batch in (1, 32):
                rows.append(case(pipes, batch, beams, args))
                if not args.json:
                    print(told(rows[-1]), flush=True)
        for pipe in pipes.values():
            pipe.send(None)
    if args.json:
        print(json.dumps({"threads": threads, "torch": torch.__version__, "rows": rows}, indent=1))


def case(pipes: dict[str, Connection], batch: int, beams: int, args: argparse.Namespace) -> dict[str, Any]:
    """One size, all ways: the first round is for warming up, and for the answers."""
    uniforms = random.Random(1)
    sources = [[uniforms.randrange(1, args.vocab - 1) for _ in range(args.source)] for _ in range(batch)]
    times: dict[str, list[float]] = {name: [] for name in pipes}
    said: dict[str, Answers] = {}
    for _ in range(1 + args.rounds * (4 if batch == 1 else 1)):  # short ones are easily disturbed
        for name, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send((sources, beams, args.new))
            seconds, said[name] = pipe.recv()
            times[name].append(seconds)
    median = {name: statistics.median(found[1:]) for name, found in times.items()}
    others = [name for name in pipes if name != "ours"]
    same = {name: sum(a == b for a, b in zip(said[name], said["ours"], strict=True)) for name in others}
    faster = {name: median[name] / median["ours"] for name in others}
    return {"beams": beams, "batch": batch, "seconds": median, "faster": faster, "same": same}


def told(row: dict[str, Any]) -> str:
    others = [
        f"{name} {row['seconds'][name] * 1e3:.0f} ms ({row['faster'][name]:.2f}x, {row['same'][name]} the same)"
        for name in row["faster"]
    ]
    head = f"beams {row['beams']} batch {row['batch']:2d}: ours {row['seconds']['ours'] * 1e3:.0f} ms"
    return ", ".join([head, *others])


if __name__ == "__main__":
    main()
