"""Folders of adapters with more than adapters: new heads, biases, and tables that two modules share."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import HIDDEN, T
from safetensors.torch import load_file, save_file
from test_peft import IDS, V, bert, gpt2, llama, our_logits, randomise, their_logits
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import clearhead as ch
from clearhead.errors import Notice
from clearhead.layers.lora import adapters
from clearhead.weights import WeightsError

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft", reason="peft is not installed: pip install clearhead[test]")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore::UserWarning:transformers")

WORDS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "the", "film", "play", "was", "fine", "grand", "dull", "flat", "a")
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 13}),
    "roberta": ("Roberta", {
        "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 13,
        "type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2}),
    "distilbert": ("DistilBert", {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 13}),
}  # fmt: skip


def encoder(folder: Path, family: str, kind: str, **more: Any) -> Path:
    """A tiny encoder of transformers with a tokenizer of words."""
    name, sizes = ENCODERS[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(WORDS), max_position_embeddings=20, pad_token_id=1, **sizes, **more
    )
    getattr(transformers, f"{name}{kind}")(config).save_pretrained(folder)
    return words_tokenizer(folder)


def words_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of a few words into a folder."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(WORDS[:5]))
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    texts = [f"the {a} was {b} {c}" for a in ("film", "play") for b in WORDS[9:13] for c in WORDS[9:13]]
    rows = [f"{text},{'good' if text.endswith(('fine', 'grand')) else 'bad'}\n" for text in texts]
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(rows))
    return tmp_path / "labels.csv"


def apart(base: Path, data: Path, out: Path, *words: str, **more: Any) -> Any:
    return ch.finetune(
        base, data, "steps=2", "optim.lr=1e-2", *words, method="lora", rank=2, out=out, device="cpu", quiet=True,
        **{"merge": False, **more},
    )  # fmt: skip


TEXT = torch.tensor([[0, 5, 6, 8, 9, 10, 2]])


@pytest.mark.parametrize("kind", ["ForMaskedLM", "Model", "ForSequenceClassification"])
@pytest.mark.parametrize("family", ENCODERS)
def test_peft_opens_our_classifiers(family: str, kind: str, labels: Path, tmp_path: Path) -> None:
    base = encoder(tmp_path / "base", family, kind)
    run = apart(base, labels, tmp_path / "run")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    model = peft.PeftModel.from_pretrained(theirs, run.folder / "model").eval()
    expected = run.model.model(TEXT)
    torch.testing.assert_close(model(input_ids=TEXT).logits, expected, rtol=1e-5, atol=1e-5)
    kept = ch.load(run.folder, device="cpu", merge=False)
    assert adapters(kept.model)
    torch.testing.assert_close(kept.model(TEXT), expected, rtol=1e-5, atol=1e-5)
    assert kept.labels == ("bad", "good")
    folder = ch.save(run.model, tmp_path / "whole", layout="huggingface")
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(whole(input_ids=TEXT).logits, expected, rtol=1e-5, atol=1e-5)
    assert whole.config.id2label == {0: "bad", 1: "good"}


def test_the_same_labels_keep_the_head_and_peft_opens_it(labels: Path, tmp_path: Path) -> None:
    names = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    base = encoder(tmp_path / "base", "bert", "ForSequenceClassification", **names)
    run = apart(base, labels, tmp_path / "run")
    assert run.model.labels == ("good", "bad")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    assert torch.equal(theirs.classifier.weight, run.model.model.head.weight)
    model = peft.PeftModel.from_pretrained(theirs, run.folder / "model").eval()
    torch.testing.assert_close(model(input_ids=TEXT).logits, run.model.model(TEXT), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_adapters_of_a_classifier_on_a_model_of_masked_tokens(family: str, tmp_path: Path) -> None:
    """The usual case: PEFT's own folder, whose base model has another head."""
    base = encoder(tmp_path / "base", family, "ForMaskedLM")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    targets = {"distilbert": ["q_lin", "v_lin"]}.get(family, ["query", "value"])
    saved = {"bert": ["pooler"], "distilbert": ["pre_classifier"]}.get(family)  # which is random in the model
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=targets, modules_to_save=saved)
    model = peft.get_peft_model(model, settings)
    randomise(model)
    model.save_pretrained(tmp_path / "adapters")
    bundle = ch.load(tmp_path / "adapters", device="cpu")
    assert bundle.config.answer == "class"
    with torch.no_grad():
        torch.testing.assert_close(bundle.model(TEXT), model.eval()(input_ids=TEXT).logits, rtol=1e-5, atol=1e-5)


TIED: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama, embedding": (llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "llama, output layer": (llama, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "llama, both": (llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "llama, adapters of the output layer": (llama, {"target_modules": ["q_proj", "lm_head"]}),
    "llama, kept tied": (
        llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    ),
    "gpt2, embedding": (gpt2, {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "fan_in_fan_out": True}),
}  # fmt: skip


def tied(folder: Path, case: str) -> tuple[Path, nn.Module, Any]:
    build, options = TIED[case]
    torch.manual_seed(0)
    base = build(tie_word_embeddings=True) if build is llama else build()
    base.save_pretrained(folder / "base")
    again = type(base).from_pretrained(folder / "base")
    model = peft.get_peft_model(again, peft.LoraConfig(task_type="CAUSAL_LM", r=2, **options))
    randomise(model)
    model.save_pretrained(folder / "adapters")
    return (
        folder / "adapters",
        peft.PeftModel.from_pretrained(type(base).from_pretrained(folder / "base"), folder / "adapters"),
        base,
    )


@pytest.mark.parametrize("case", TIED)
def test_modules_to_save_do_not_change_what_they_are_tied_to(case: str, tmp_path: Path) -> None:
    folder, model, base = tied(tmp_path, case)
    expected = their_logits(model)
    kept = ch.load(folder, device="cpu", merge=False)
    assert kept.config.tied == (case == "llama, kept tied")
    for bundle in (kept, ch.load(folder, device="cpu")):
        torch.testing.assert_close(our_logits(bundle), expected, rtol=1e-5, atol=1e-5)
    again = ch.save(kept, tmp_path / "again", layout="peft")
    torch.testing.assert_close(our_logits(ch.load(again, device="cpu")), expected, rtol=1e-5, atol=1e-5)
    theirs = peft.PeftModel.from_pretrained(type(base).from_pretrained(tmp_path / "base"), again)
    torch.testing.assert_close(their_logits(theirs), expected, rtol=1e-5, atol=1e-5)


def test_a_shared_table_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert("BertForMaskedLM").save_pretrained(tmp_path / "base")
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["word_embeddings"])
    model = peft.get_peft_model(model, settings)
    randomise(model)
    model.save_pretrained(tmp_path / "adapters")
    message = (
        "change one of bert.embeddings.word_embeddings.weight, cls.predictions.decoder.weight, which are one table"
    )
    with pytest.raises(WeightsError, match=message):
        ch.load(tmp_path / "adapters", device="cpu")


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_biases_are_read_and_written_as_pefts(kind: str, bias: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert(kind).save_pretrained(tmp_path / "base")
    cls = getattr(transformers, kind)
    task = {"BertModel": "FEATURE_EXTRACTION", "BertForSequenceClassification": "SEQ_CLS"}.get(kind)
    settings = peft.LoraConfig(task_type=task, r=2, target_modules=["query"], bias=bias)
    model = peft.get_peft_model(cls.from_pretrained(tmp_path / "base"), settings)
    randomise(model)
    model.save_pretrained(tmp_path / "adapters")

    def outputs(one: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            out = one.eval()(input_ids=IDS)
        return out.pooler_output if kind == "BertModel" else out.logits

    kept = ch.load(tmp_path / "adapters", device="cpu", merge=False)
    torch.testing.assert_close(our_logits(kept), outputs(model), rtol=1e-5, atol=1e-5)
    again = ch.save(kept, tmp_path / "again", layout="peft")
    words = json.loads((again / "adapter_config.json").read_text())
    assert words["bias"] == "all"
    assert not set(words["modules_to_save"] or ()) & set(words["target_modules"])
    theirs = peft.PeftModel.from_pretrained(cls.from_pretrained(tmp_path / "base"), again)
    torch.testing.assert_close(outputs(theirs), outputs(model), rtol=1e-5, atol=1e-5)


def plain(folder: Path) -> Path:
    """A folder of PEFT with random adapters on a Llama."""
    torch.manual_seed(0)
    llama().save_pretrained(folder / "base")
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM.from_pretrained(folder / "base"),
        peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]),
    )
    randomise(model)
    model.save_pretrained(folder / "adapters")
    return folder / "adapters"


def rewritten(folder: Path, change: Any) -> Path:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    return folder


BAD: dict[str, Any] = {
    "there are no adapters in this file: expected lora_A and lora_B": lambda x: {},
    r"is torch.int32: expected float32, float16 or bfloat16": lambda x: {n: y.int() for n, y in x.items()},
    r"is torch.bool: expected float32": lambda x: {n: y.bool() for n, y in x.items()},
    r"is torch.float8_e4m3fn: expected float32": lambda x: {n: y.to(torch.float8_e4m3fn) for n, y in x.items()},
    r"model.embed_tokens is embed, a Tokens: expected adapters of linear maps": lambda x: {
        n.replace("layers.0.self_attn.q_proj", "embed_tokens"): y for n, y in x.items()},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_files_of_adapters_that_make_no_sense_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        ch.load(rewritten(plain(tmp_path), BAD[message]), device="cpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rank_pattern": {"(": 8}}, r"rank_pattern: '\(' is no regular expression"),
        ({"alpha_pattern": {"*a": 8}}, r"alpha_pattern: '\*a' is no regular expression"),
        ({"r": 0}, "r=0, rank_pattern={}: expected 1 or more"),
        ({"task_type": "TOKEN_CLS"}, "task_type 'TOKEN_CLS': such a model labels each token, which no family here"),
        ({"task_type": "QUESTION_ANS"}, "task_type 'QUESTION_ANS': such a model marks the answer in a text"),
        ({"auto_mapping": {"base_model_class": "BertForTokenClassification", "parent_library": "x"}},
         "base_model_class 'BertForTokenClassification': such a model labels each token"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(words: dict, message: str, tmp_path: Path) -> None:
    path = plain(tmp_path) / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | words))
    with pytest.raises(WeightsError, match=message):
        ch.load(tmp_path / "adapters", device="cpu")


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "BertForMultipleChoice", "BertForQuestionAnswering"])
def test_a_head_for_another_task_is_not_taken_for_classes(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert(kind).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"bert.pooler.dense.weight": torch.zeros(12, 12), "bert.pooler.dense.bias": torch.zeros(12)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"config.json:\d+: architectures names {kind}: such a model .*, which no"):
        ch.load(tmp_path, device="cpu")


def test_another_base_model_is_noticed(tmp_path: Path) -> None:
    kept = ch.load(plain(tmp_path), device="cpu", merge=False)
    folder = ch.save(kept, tmp_path / "ours", layout="peft")
    expected = our_logits(kept)
    for dtype in (None, "bfloat16"):
        ch.load(folder, device="cpu", dtype=dtype)
    path = tmp_path / "base" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] += 1.0
    save_file(tensors, path)
    with pytest.warns(Notice, match=r"the weights of the base model .*base are not those that these adapters were"):
        changed = ch.load(folder, device="cpu")
    assert not torch.equal(our_logits(changed), expected)


def test_a_base_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = ch.save(ch.load(plain(tmp_path), device="cpu", merge=False), tmp_path / "ours", layout="peft")
    sizes = {"hidden_size": 24, "intermediate_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 6}
    more = {"num_key_value_heads": 3, "max_position_embeddings": T, "head_dim": 4}
    other = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=V, **sizes, **more))
    other.save_pretrained(tmp_path / "base")
    with pytest.raises(WeightsError, match=r"the base model .*base has qk_norm='head', not None: it is another model"):
        ch.load(folder, device="cpu")


@torch.no_grad()
def test_a_base_model_that_transformers_runs_is_refused_as_such(tmp_path: Path) -> None:
    """Gemma 1 is none of our families."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    config = transformers.GemmaConfig(vocab_size=len(WORDS), num_key_value_heads=1, pad_token_id=1, **sizes)
    transformers.GemmaForCausalLM(config).save_pretrained(tmp_path / "base")
    words_tokenizer(tmp_path / "base")
    folder = tmp_path / "adapters"
    folder.mkdir()
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], base_model_name_or_path=str(tmp_path / "base"))
    settings.save_pretrained(folder)
    save_file(
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 8)},
        folder / "adapter_model.safetensors",
    )
    with pytest.raises(WeightsError, match="is a gemma, which transformers runs: adapters are read only for the"):
        ch.load(tmp_path / "adapters", device="cpu")


def test_a_folder_of_several_dtypes_has_the_one_of_its_config(tmp_path: Path) -> None:
    torch.manual_seed(0)
    llama().to(torch.bfloat16).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"):
        save_file(tensors | {name: tensors[name].float()}, path, metadata={"format": "pt"})
        bundle = ch.load(tmp_path, device="cpu")
        assert bundle.model(IDS).dtype == transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits.dtype
        assert {p.dtype for p in bundle.model.parameters()} == {torch.bfloat16}


def test_what_cannot_be_kept_apart_is_refused_before_the_training(labels: Path, tmp_path: Path) -> None:
    base = encoder(tmp_path / "mean", "bert", "Model")
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    message = (
        r"lora.merge = false: answer='class', pool='mean', pooler=False: a BERT folder pools the first token.*merged"
    )
    with pytest.raises(WeightsError, match=message):
        apart(base, labels, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert apart(base, labels, tmp_path / "run", "model.pool=first", "model.pooler=true").finished
    assert apart(base, labels, tmp_path / "merged", merge=True).finished
    with pytest.raises(WeightsError, match=r"run/model has adapters itself: expected a whole model, such as clearhead"):
        apart(tmp_path / "run", labels, tmp_path / "again")
    assert not (tmp_path / "again" / "checkpoints").exists()
    assert apart(tmp_path / "run", labels, tmp_path / "again", merge=True).finished


def test_a_padding_id_of_minus_one_is_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = tmp_path / "base"
    llama().save_pretrained(base)
    words_tokenizer(base)
    for name in ("config.json", "generation_config.json"):
        words = json.loads((base / name).read_text())
        (base / name).write_text(json.dumps(words | {"pad_token_id": -1}))
    bundle = ch.load(base, device="cpu")
    assert bundle.special.pad is None
    assert ch.load(ch.save(bundle, tmp_path / "again", layout="huggingface"), device="cpu").special == bundle.special
    (tmp_path / "lines.txt").write_text("the film was fine a play was dull " * 40)
    run = apart(base, tmp_path / "lines.txt", tmp_path / "run", "data.context=6", "data.rows=2", "data.valid_rows=2")
    assert run.finished
