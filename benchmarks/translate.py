"""How fast a CPU writes translations: Hugging Face's Marian, CTranslate2 and ours, the same weights, in one run.

    python benchmarks/translate.py                    # a base-sized Marian with random weights
    python benchmarks/translate.py --width 256 --depth 3 --new 16

All write the same number of tokens for every sentence, so that none is lucky with an early end: greedily and by 5
beams, one sentence and 32 at a time. Times are medians of interleaved rounds. CTranslate2 (`pip install -e .[bench]`)
is left out where it is not installed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

import clearhead as ch
from clearhead.decode import search

Answers = list[tuple[int, ...]]


def peer(width: int, depth: int, vocab: int) -> torch.nn.Module:
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


def ctranslate2(theirs: torch.nn.Module, folder: str) -> Callable[[torch.Tensor, int, int], Answers] | None:
    """CTranslate2 with these weights, at float32: sources, beams and tokens to write -> the ids of the answers."""
    if find_spec("ctranslate2") is None:
        return None
    from ctranslate2 import Translator
    from ctranslate2.converters.transformers import MarianMTLoader

    loader, vocab = MarianMTLoader(), theirs.config.vocab_size - 1  # it starts from zeros, and has no padding
    spec, words = loader.get_model_spec(theirs), ["</s>", "<unk>", *(f"w{i}" for i in range(2, vocab))]
    ids = {word: i for i, word in enumerate(words)}
    loader.set_vocabulary(spec, words)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "</s>", "<unk>", "</s>"
    spec.validate()
    spec.save(folder)
    run = Translator(folder, compute_type="float32", inter_threads=1, intra_threads=torch.get_num_threads())

    def translate(source: torch.Tensor, beams: int, new: int) -> Answers:
        found = run.translate_batch(
            [[words[i] for i in row] for row in source.tolist()], beam_size=beams, length_penalty=1.0,
            min_decoding_length=new, max_decoding_length=new,
        )  # fmt: skip
        return [tuple(ids[word] for word in one.hypotheses[0]) for one in found]

    return translate


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
    theirs = peer(args.width, args.depth, args.vocab)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ready = ch.load(folder, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        third = ctranslate2(theirs, folder)
    ours, special = ready.model, ready.special
    rows = []
    for beams in (1, 5):
        for batch in (1, 32):
            torch.manual_seed(1)
            source = torch.randint(1, args.vocab - 1, (batch, args.source))
            lengths = torch.full((batch,), args.source)

            def their_way(source: torch.Tensor = source, beams: int = beams) -> Answers:
                found = theirs.generate(
                    input_ids=source, attention_mask=torch.ones_like(source), num_beams=beams, do_sample=False,
                    min_new_tokens=args.new, max_new_tokens=args.new, length_penalty=1.0, early_stopping=False,
                )  # fmt: skip
                return [tuple(row[1:]) for row in found.tolist()]

            def our_way(source: torch.Tensor = source, lengths: torch.Tensor = lengths, beams: int = beams) -> Answers:
                found = search(
                    ours, {"source": source, "lengths": lengths}, start=special.start, end=special.ends[0],
                    beams=beams, limit=args.new, banned=[special.pad, *special.ends],
                )  # fmt: skip
                return [row[0].ids for row in found]

            ways: dict[str, Callable[[], Answers]] = {"transformers": their_way, "ours": our_way}
            if third is not None:
                ways["ctranslate2"] = partial(third, source, beams, args.new)
            said = {name: way() for name, way in ways.items()}
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(args.rounds):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - start)
            median = {name: statistics.median(found) for name, found in times.items()}
            others = [name for name in ways if name != "ours"]
            same = {name: sum(a == b for a, b in zip(said[name], said["ours"], strict=True)) for name in others}
            faster = {name: median[name] / median["ours"] for name in others}
            rows.append({"beams": beams, "batch": batch, "seconds": median, "faster": faster, "same": same})
            if not args.json:
                told = [
                    f"{name} {median[name] * 1e3:.0f} ms ({faster[name]:.2f}x, {same[name]} of {batch} the same)"
                    for name in others
                ]
                print(
                    f"beams {beams} batch {batch:2d}: ours {median['ours'] * 1e3:.0f} ms,", ", ".join(told), flush=True
                )
    if args.json:
        print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
