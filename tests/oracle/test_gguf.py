"""GGUF files, written here and read by us and by transformers: every weight format, both kinds of tokenizers."""

import io
import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.layers.lora import adapters, add_adapters
from clearhead.tokens import Pieces, Subwords
from clearhead.weights import Special, WeightsError, certificate, read_config
from clearhead.weights.gguf.file import TYPES
from support.command_line import output

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gguf")
WIDTH, HIDDEN, HEADS, KV, DEPTH, VOCAB = 64, 96, 4, 2, 2, 37
# The types that the gguf package can write.
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def oracle(tied: bool = False, vocab: int = VOCAB, width: int = WIDTH, hidden: int = HIDDEN) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=hidden, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=48, rms_norm_eps=1e-4,
        tie_word_embeddings=tied, rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def packed(w: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of a matrix; of the types that the gguf package only reads, random blocks of small weights."""
    if kind in KINDS:
        return gguf.quantize(np.ascontiguousarray(w), gguf.GGMLQuantizationType[kind])
    block, record = TYPES[kind].block, TYPES[kind].record
    rng = np.random.default_rng(w.size)
    blocks = rng.integers(0, 256, (w.size // block, record.itemsize), dtype=np.uint8).view(record)
    for name in sorted({"d", "m"} & set(record.names)):
        blocks[name] = 1e-4 * rng.standard_normal(blocks.shape)
    return blocks.view(np.uint8).reshape(len(w), -1)


def write(
    path: Path, model: nn.Module, kind: str = "F32", arch: str = "llama", tensors: dict | None = None, **metadata: Any
) -> Path:
    """Write a file as llama.cpp's converter does; `metadata` is given by the names of GGUFWriter's add_ methods."""
    file = gguf.GGUFWriter(path, arch)
    c = model.config
    usual = {
        "block_count": c.num_hidden_layers, "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "head_count": c.num_attention_heads, "head_count_kv": c.num_key_value_heads,
        "layer_norm_rms_eps": c.rms_norm_eps, "rope_freq_base": 500.0, "vocab_size": c.vocab_size,
    }  # fmt: skip
    for name, value in (usual | metadata).items():
        getattr(file, f"add_{name}")(value)
    if "tokenizer_model" not in metadata:  # transformers needs a tokenizer
        file.add_tokenizer_model("gpt2")
        file.add_token_list([f"<{i}>" for i in range(c.vocab_size)])
        file.add_token_merges([])
    for name, values in (tensors or {}).items():
        file.add_tensor(name, np.float32(values))
    for name, x in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        parts = name.removesuffix(".weight").split(".", 3)
        w = x.numpy()
        if parts[:2] == ["model", "layers"]:
            their_name = f"blk.{parts[2]}.{NAMES[parts[3]]}.weight"
        else:
            their_name = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[
                name.removesuffix(".weight")
            ] + ".weight"
        if "attn_q" in their_name or "attn_k" in their_name:  # pairs that are rotated together become neighbours
            heads = HEADS if "attn_q" in their_name else KV
            w = w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)
        if w.ndim == 1:
            file.add_tensor(their_name, w)
        else:
            file.add_tensor(their_name, packed(w, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def ids() -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, 21), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_file_gives_the_outputs_of_its_model(tied: bool, tmp_path: Path) -> None:
    theirs = oracle(tied)
    ours = ch.load(write(tmp_path / "a.gguf", theirs), device="cpu")
    torch.testing.assert_close(ours.model(ids()), theirs(ids()).logits, rtol=0.0, atol=1e-5)
    back = ch.load(ch.save(ours, tmp_path / "folder", layout="huggingface"), device="cpu")
    expected = theirs.state_dict()
    assert torch.equal(back.model.blocks[1].attn.query.weight, expected["model.layers.1.self_attn.q_proj.weight"])
    assert torch.equal(back.model.blocks[0].attn.key.weight, expected["model.layers.0.self_attn.k_proj.weight"])
    assert back.config == ours.config


def test_options_are_read_without_dequantising_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", oracle())
    expected = ch.load(path, device="cpu")
    monkeypatch.setattr("clearhead.weights.gguf.file.dequantise", lambda data, name: pytest.fail("a tensor was read"))
    assert read_config(path) == ("gpt", ch.config.dump(expected.config))
    bundle = ch.load(path, device="meta")
    assert (bundle.config, bundle.tokens, bundle.special) == (expected.config, expected.tokens, expected.special)


@pytest.mark.parametrize("kind", TYPES)
def test_every_weight_format(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    write(tmp_path / "a.gguf", oracle(width=256, hidden=512) if TYPES[kind].block == 256 else oracle(), kind)
    result = certificate(tmp_path)  # a folder with one GGUF file
    assert result.reference.startswith("transformers")
    assert result.difference < 1e-5 * max(1.0, result.largest)
    assert result.types.keys() == {"F32", kind}
    assert {p.dtype for p in ch.load(tmp_path, device="cpu").model.parameters()} == {torch.float32}
    halved = ch.load(tmp_path, device="cpu", dtype="bfloat16").model
    assert {p.dtype for p in halved.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("split", ["gpt-2", "smollm"])
def test_byte_pair_tokenizer(split: str, tmp_path: Path) -> None:
    from tokenizers import pre_tokenizers

    texts = ["A dog runs, it's 2024.", "Zwei Männer  reden.", "12345 x9"]
    plain = Subwords.of(texts * 3, size=300)
    vocab = plain._tokenizer.get_vocab()
    names = sorted(vocab, key=vocab.get)
    merges = [" ".join(pair) for pair in json.loads(plain.to_str())["model"]["merges"]]
    types = [3] * 4 + [1] * (len(names) - 4)
    turn = {"gpt-2": 2, "smollm": 3}[split]  # the end of a turn, which may be that of a text
    metadata = {
        "tokenizer_model": "gpt2", "tokenizer_pre": split, "token_list": names, "token_types": types,
        "token_merges": merges, "bos_token_id": 1, "eos_token_id": 2, "eot_token_id": turn, "add_bos_token": True,
        "chat_template": "{{ messages }}",
    }  # fmt: skip
    bundle = ch.load(write(tmp_path / "a.gguf", oracle(vocab=len(names)), **metadata), device="cpu")
    assert bundle.chat == "{{ messages }}"
    assert bundle.special == Special(pad=None, start=1, ends=tuple(dict.fromkeys((2, turn))))
    if split == "smollm":
        before = plain._tokenizer.pre_tokenizer
        plain._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), before])
    for text in [*texts, "naïve 漢字 👩\u200d👧  \n\n\t x 3.14159 ½ <start> <end>", "", " "]:
        assert bundle.tokens.encode(text).tolist() == plain.encode(text).tolist(), text
        assert bundle.tokens.decode(bundle.tokens.encode(text)) == text
    assert bundle.tokens.wrapped("A dog").tolist() == [1, *plain.encode("A dog")]
    assert bundle.tokens.marked("A<end>dog").tolist() == [*plain.encode("A"), 2, *plain.encode("dog")]
    kept = ch.load(ch.save(bundle, tmp_path / "kept"), device="cpu")
    assert (kept.tokens, kept.chat, kept.special) == (bundle.tokens, bundle.chat, bundle.special)
    ch.save(bundle, tmp_path / "theirs", layout="huggingface")
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs("A dog 12")["input_ids"] == bundle.tokens.wrapped("A dog 12").tolist()
    assert theirs.chat_template == bundle.chat
    assert ch.load(tmp_path / "theirs", device="cpu").chat == bundle.chat


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # of transformers, in PEFT
def test_the_card_of_adapters_on_a_file_says_how_peft_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    plain = Subwords.of(["A dog runs, it's 2024."] * 3, size=300)
    vocab = plain._tokenizer.get_vocab()
    names = sorted(vocab, key=vocab.get)
    merges = [" ".join(pair) for pair in json.loads(plain.to_str())["model"]["merges"]]
    metadata = {
        "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": names,
        "token_types": [3] * 4 + [1] * (len(names) - 4), "token_merges": merges, "eos_token_id": 2,
    }  # fmt: skip
    base = write(tmp_path / "small.gguf", oracle(vocab=len(names)), **metadata)
    (tmp_path / "lines.txt").write_text("A dog runs.\n" * 30)
    words = {"method": "lora", "rank": 2, "merge": False, "device": "cpu", "quiet": True}
    run = ch.finetune(base, tmp_path / "lines.txt", "steps=1", "data.rows=1", out=tmp_path / "run", **words)
    card = (ch.export(run.folder, tmp_path / "adapters", apart=True) / "README.md").read_text()
    assert "`small.gguf`, is a GGUF file, which PEFT cannot open" in card
    # the two steps of the card, as they are written there
    command, code = re.findall(r"```(?:python)?\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    output(*command.split()[1:])
    made: dict[str, Any] = {}
    exec(code, made)
    given = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        theirs = made["model"].eval()(given).logits
        torch.testing.assert_close(theirs, ch.load(run.folder, device="cpu").model(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lead", [True, False])
def test_sentencepiece_tokenizer(lead: bool, tmp_path: Path) -> None:
    spm, file = pytest.importorskip("sentencepiece"), io.BytesIO()
    texts = ["A dog runs over the green grass.", "Two men are talking.", "Zwei Männer reden auf der Straße."]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 9), model_writer=file, model_type="bpe", byte_fallback=True, vocab_size=340,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=lead, minloglevel=2,
    )  # fmt: skip
    oracle_ = spm.SentencePieceProcessor(model_proto=file.getvalue())
    n = oracle_.get_piece_size()
    types = [2, 3, 3, *(6 if oracle_.is_byte(i) else 1 for i in range(3, n))]
    metadata = {
        "tokenizer_model": "llama", "token_list": [oracle_.id_to_piece(i) for i in range(n)], "token_types": types,
        "token_scores": [oracle_.get_score(i) for i in range(n)], "bos_token_id": 1, "eos_token_id": 2,
        "unk_token_id": 0, "add_space_prefix": lead,
    }  # fmt: skip
    bundle = ch.load(write(tmp_path / "a.gguf", oracle(vocab=n), **metadata), device="cpu")
    assert isinstance(bundle.tokens, Pieces)
    rng = random.Random(0)
    drawn = ["".join(rng.choices("aenrdogs  .Aß漢\n\t", k=20)) for _ in range(100)]
    for text in [*texts, *drawn, "👩\u200d👧 \x00", "", " ", "  two"]:
        assert bundle.tokens.encode(text).tolist() == oracle_.encode(text), text
        assert bundle.tokens.decode(oracle_.encode(text)) == oracle_.decode(oracle_.encode(text)), text
    assert bundle.tokens.wrapped("A dog").tolist() == [1, *oracle_.encode("A dog")]
    assert bundle.tokens.marked("A</s>dog").tolist() == [*oracle_.encode("A"), 2, *oracle_.encode("dog")]
    kept = ch.load(ch.save(bundle, tmp_path / "kept"), device="cpu")
    assert (kept.tokens, kept.special) == (bundle.tokens, bundle.special)
    ch.save(bundle, tmp_path / "theirs", layout="huggingface")
    again = spm.SentencePieceProcessor(model_file=str(tmp_path / "theirs" / "tokenizer.model"))
    assert all(again.encode(text) == oracle_.encode(text) for text in [*texts, *drawn])
    back = ch.load(tmp_path / "theirs", device="cpu").tokens
    assert back.wrapped(texts[0]).tolist() == bundle.tokens.wrapped(texts[0]).tolist()


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    path, theirs = tmp_path / "a.gguf", oracle()
    write(path, theirs)
    whole = path.read_bytes()
    for keep in (0, 3, 100, 2000, len(whole) - 50):
        path.write_bytes(whole[:keep])
        with pytest.raises(WeightsError, match=r"a.gguf: is not a whole GGUF file"):
            ch.load(path, device="cpu")
    write(path, theirs, arch="mamba")
    with pytest.raises(WeightsError, match=r"a.gguf: general.architecture is 'mamba': expected 'llama'"):
        ch.load(path, device="cpu")
    write(path, theirs, tokenizer_model="gpt2", token_list=["a"], tokenizer_pre="poro")
    with pytest.raises(
        WeightsError, match=r"the tensor model.embed_tokens.weight has the shape \(37, 64\), expected \(1"
    ):
        ch.load(path, device="cpu")
    names = [f"<{i}>" for i in range(VOCAB)]
    write(path, theirs, tokenizer_model="gpt2", token_list=names, tokenizer_pre="poro")
    with pytest.raises(WeightsError, match=r"tokenizer.ggml.pre is 'poro': expected one of default, gpt-2"):
        ch.load(path, device="cpu")
    write(path, theirs, tokenizer_model="rwkv", token_list=names)
    with pytest.raises(WeightsError, match=r"tokenizer.ggml.model is 'rwkv': expected gpt2 or llama"):
        ch.load(path, device="cpu")


SIZES = ("block_count", "context_length", "embedding_length", "feed_forward_length", "head_count", "head_count_kv")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_zero_are_refused_by_their_key(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", oracle(), **{name: 0})
    key = f"attention.{name}" if "head" in name else name
    with pytest.raises(WeightsError, match=rf"a.gguf: llama.{key} is 0: expected a whole number, 1 or more"):
        ch.load(path, device="cpu")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"block_count": 4_000_000_000}, r"depth=4000000000, but a.gguf has only 21 tensors"),
        ({"embedding_length": 4_000_000_000}, r"width=4000000000, but a.gguf has only \d+ weights"),
        ({"key_length": 0}, r"llama.attention.key_length is 0"),
        ({"rope_dimension_count": 0}, r"llama.rope.dimension_count is 0"),
        ({"rope_dimension_count": 8, "key_length": 16}, r"8 of 16 columns of a head are rotated"),
        ({"rope_freq_base": 0.0}, r"llama.rope.freq_base is 0.0: expected a number above 0"),
        ({"rope_freq_base": float("nan")}, r"llama.rope.freq_base is nan: expected a number above 0"),
        ({"layer_norm_rms_eps": -1.0}, r"llama.attention.layer_norm_rms_epsilon is -1.0: expected a number above 0"),
        ({"head_count": [4, 4]}, r"llama.attention.head_count is \[4, 4\]: expected a whole number"),
        ({"head_count": 128}, r"a.gguf: .*head"),
        ({"bos_token_id": 9**6, "add_bos_token": True}, r"the tokenizer cannot be built \(IndexError"),
        ({"token_types": [1]}, r"the tokenizer cannot be built \(ValueError"),
    ],
)
def test_impossible_metadata_is_refused_quickly(metadata: dict, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", oracle(), **metadata)
    began = time.perf_counter()
    with pytest.raises(WeightsError, match=message):
        ch.load(path, device="cpu")
    assert time.perf_counter() - began < 5


@torch.no_grad()
def test_rope_factors_are_checked(tmp_path: Path) -> None:
    """Llama 3 slows rotary frequencies down: the factors in the file must be those that we compute."""
    from clearhead.layers import Rotary

    head, base = WIDTH // HEADS, 500_000.0
    plain, slowed = Rotary(head, base=base), Rotary(head, base=base, scaling="llama3", factor=8.0, context=8192)
    factors = (plain.speed / slowed.speed).float().numpy()
    path = write(tmp_path / "a.gguf", oracle(), tensors={"rope_freqs.weight": factors}, rope_freq_base=base)
    config = ch.load(path, device="cpu").config
    assert (config.base, config.scaling, config.factor, config.trained) == (base, "llama3", 8.0, 8192)
    wrong = {"rope_freqs.weight": factors * np.linspace(2, 1, head // 2)}
    path = write(tmp_path / "b.gguf", oracle(), tensors=wrong, rope_freq_base=base)
    with pytest.raises(WeightsError, match=r"b.gguf: rope_freqs.weight is not the constant that such a model has"):
        ch.load(path, device="cpu")


@pytest.mark.parametrize("split", ["llama-bpe", "llama3", "smollm"])
@pytest.mark.parametrize("ends", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
def test_tokens_of_llama_3_need_no_merges_and_begin_with_bos(split: str, ends: dict, tmp_path: Path) -> None:
    """As llama.cpp, which ignores merges for words of the vocabulary, and adds BOS unless the file says otherwise."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<bos>", "<eos>", "ab", "hello"]
    bos, eos = len(names) - 4, len(names) - 3
    metadata = {
        "tokenizer_model": "gpt2", "tokenizer_pre": split, "token_list": names, "token_merges": ["a b"],
        "token_types": [3 if name in ("<bos>", "<eos>") else 1 for name in names], "bos_token_id": bos,
        "eos_token_id": eos, **ends,
    }  # fmt: skip
    tokens = ch.load(write(tmp_path / "a.gguf", oracle(vocab=len(names)), **metadata), device="cpu").tokens
    whole = split != "smollm"
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("a", "b")], ignore_merges=whole))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    expected = backend.encode("hello ab").ids
    assert tokens.encode("hello ab").tolist() == expected
    before = [bos] if ends.get("add_bos_token", whole) else []
    assert tokens.wrapped("hello ab").tolist() == [*before, *expected, *([eos] if ends.get("add_eos_token") else [])]


SCALINGS: dict[str, tuple[dict[str, Any], float]] = {  # keys of the file, and the factor of linear scaling
    "type and factor": ({"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}, 3.0),
    "factor alone": ({"rope.scaling.factor": 3.0}, 3.0),
    "the old key": ({"rope.scale_linear": 3.0}, 3.0),
    "the newer key wins": ({"rope.scale_linear": 5.0, "rope.scaling.factor": 3.0}, 3.0),
    "none": ({"rope.scaling.type": "none", "rope.scaling.factor": 3.0}, 1.0),
    "a factor of 0": ({"rope.scaling.factor": 0.0}, 1.0),
    "a type without a factor": ({"rope.scaling.type": "linear"}, 1.0),
}


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_linear_scaling_is_that_of_llama_cpp(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, factor = SCALINGS[name]

    def scaling(file: Any, values: dict[str, Any]) -> None:
        for key, value in values.items():
            (file.add_string if isinstance(value, str) else file.add_float32)(f"llama.{key}", value)

    monkeypatch.setattr(gguf.GGUFWriter, "add_scaling", scaling, raising=False)
    theirs = oracle()
    bundle = ch.load(write(tmp_path / "a.gguf", theirs, scaling=keys), device="cpu")
    rope = {"rope_theta": 500.0, "rope_type": "linear", "factor": factor}
    config = type(theirs.config)(**{**theirs.config.to_dict(), "rope_parameters": rope})
    scaled = type(theirs)(config).eval()
    scaled.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(bundle.model(ids()), scaled(ids()).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_peft_opens_adapters_of_gguf_files(tied, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install clearhead[test]")
    theirs = oracle(tied)
    base = write(tmp_path / "base.gguf", theirs, "F32")
    bundle = ch.load(base)
    add_adapters(bundle.model, rank=3, alpha=5.0)
    with torch.no_grad():
        for lora in adapters(bundle.model).values():
            lora.lora_b.normal_()
        bundle.model.norm.weight.mul_(2.0)  # a tensor that differs from the base model's
    folder = ch.save(replace(bundle, base=str(base)), tmp_path / "adapters", layout="peft")
    ids = torch.arange(20)[None]
    expected = bundle.model(ids)
    assert torch.equal(ch.load(folder, merge=False).model(ids), expected)
    found = peft.PeftModel.from_pretrained(theirs, folder).eval()(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
