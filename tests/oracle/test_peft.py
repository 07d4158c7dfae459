"""Adapters of the PEFT library: its folders opened here, ours opened by it, and trainings side by side."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import HIDDEN, B, T
from safetensors.torch import load_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers.lora import adapters, add_adapters
from clearhead.weights import Bundle, WeightsError

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft", reason="peft is not installed: pip install clearhead[test]")

V, PAD = 17, 16
IDS = torch.randint(0, PAD, (B, T), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randint(0, PAD, (B, T - 2), generator=torch.Generator().manual_seed(2))


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V, n_positions=T, n_embd=12, n_layer=2, n_head=3, n_inner=HIDDEN, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def llama(**more: Any) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=V, hidden_size=24, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=3, max_position_embeddings=T, bos_token_id=0, eos_token_id=1, **more,
        )
    )  # fmt: skip


def bert(kind: str = "BertForSequenceClassification") -> nn.Module:
    return getattr(transformers, kind)(
        transformers.BertConfig(
            vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=HIDDEN,
            max_position_embeddings=T, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def marian() -> nn.Module:
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=1, encoder_attention_heads=3,
            decoder_attention_heads=3, encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN, pad_token_id=PAD,
            decoder_start_token_id=PAD, eos_token_id=0, forced_eos_token_id=None, max_position_embeddings=32,
            dropout=0.0,
        )
    )  # fmt: skip


def their_logits(model: nn.Module) -> Tensor:
    """The logits of a model of theirs for fixed ids."""
    kind = model.config.model_type
    model.eval()
    with torch.no_grad():
        if kind == "marian":
            return model(input_ids=SOURCE, decoder_input_ids=IDS).logits
        return model(input_ids=IDS).logits


def our_logits(bundle: Bundle) -> Tensor:
    with torch.no_grad():
        return bundle.model(source=SOURCE, ids=IDS) if bundle.reads == "pairs" else bundle.model(IDS)


KINDS: dict[str, tuple[Callable[[], nn.Module], str, dict[str, Any]]] = {  # model, PEFT's task, targets
    "gpt2": (gpt2, "CAUSAL_LM", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "llama": (llama, "CAUSAL_LM", {"target_modules": ["q_proj", "v_proj", "down_proj", "gate_proj"]}),
    "bert": (bert, "SEQ_CLS", {"target_modules": ["query", "value", "intermediate.dense"]}),
    "marian": (marian, "SEQ_2_SEQ_LM", {"target_modules": ["q_proj", "k_proj", "out_proj", "fc1"]}),
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


def randomise(model: nn.Module) -> None:
    """Give adapters, and modules that are saved whole, random weights."""
    dice = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad or "lora_" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=dice))


def their_folder(folder: Path, kind: str, **options: Any) -> tuple[Path, nn.Module]:
    """A folder that peft wrote, with random adapters on a random base model, and the model."""
    build, task, targets = KINDS[kind]
    torch.manual_seed(0)
    base = build()
    base.save_pretrained(folder / "base")
    base.name_or_path = str(folder / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(task_type=task, r=3, lora_alpha=5, **targets | options))
    randomise(model)
    model.save_pretrained(folder / "adapters")
    return folder / "adapters", model


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "patterns": {"rank_pattern": {r"(layer|layers|h)\.1\..*": 2}, "alpha_pattern": {"v_proj|value|c_attn|k_proj": 7}},
    "rslora": {"use_rslora": True},
    "biases": {"bias": "lora_only"},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@kinds
@pytest.mark.parametrize("option", OPTIONS)
def test_a_folder_that_peft_wrote_gives_the_same_logits_merged_and_kept_apart(
    kind: str, option: str, tmp_path: Path
) -> None:  # fmt: skip
    folder, model = their_folder(tmp_path, kind, **OPTIONS[option])
    expected, without = their_logits(model), their_logits(KINDS[kind][0]().from_pretrained(tmp_path / "base"))
    assert (expected - without).abs().max() > 0.01  # the adapters matter
    merged, kept = ch.load(folder, device="cpu"), ch.load(folder, device="cpu", merge=False)
    assert not adapters(merged.model)
    assert adapters(kept.model)
    torch.testing.assert_close(our_logits(merged), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_logits(kept), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
@kinds
def test_peft_opens_a_folder_that_we_wrote_with_the_same_logits(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build = KINDS[kind][0]
    build().save_pretrained(tmp_path / "base")
    bundle = ch.load(tmp_path / "base", device="cpu")
    add_adapters(bundle.model, ("q", "v", "mlp"), rank=2, alpha=3.0)
    if kind == "bert":
        bundle.model.head.requires_grad_(True)  # a new head, which is saved whole
    randomise(bundle.model)
    ours = ch.save(
        Bundle(bundle.model, base=str(tmp_path / "base"), special=bundle.special), tmp_path / "ours", layout="peft"
    )
    model = peft.PeftModel.from_pretrained(build().from_pretrained(tmp_path / "base"), ours)
    expected = our_logits(bundle)
    torch.testing.assert_close(their_logits(model), expected, rtol=1e-5, atol=1e-5)
    again = ch.load(ours, device="cpu", merge=False)
    torch.testing.assert_close(our_logits(again), expected, rtol=1e-6, atol=1e-6)
    assert {name: one.rank for name, one in adapters(again.model).items()} == dict.fromkeys(adapters(bundle.model), 2)
    settings = json.loads((ours / "adapter_config.json").read_text())
    assert settings["task_type"] == KINDS[kind][1]
    assert settings["modules_to_save"] == (["classifier"] if kind == "bert" else None)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_classifier_on_a_base_without_one_comes_from_the_adapters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert("BertModel").save_pretrained(tmp_path / "base")
    model = bert().from_pretrained(tmp_path / "base", num_labels=4)
    model.name_or_path = str(tmp_path / "base")
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    randomise(model)
    model.save_pretrained(tmp_path / "adapters")
    bundle = ch.load(tmp_path / "adapters", device="cpu")
    assert bundle.config.answer == "class"
    torch.testing.assert_close(our_logits(bundle), their_logits(model), rtol=1e-5, atol=1e-5)


REFUSED: dict[str, dict[str, Any]] = {
    "use_dora": {"use_dora": True},
    "lora_bias": {"lora_bias": True},
    "init_lora_weights": {"init_lora_weights": "pissa"},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_we_cannot_compute_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder, _ = their_folder(tmp_path, "llama", **REFUSED[name])
    with pytest.raises(WeightsError, match=name):
        ch.load(folder)


def test_another_kind_of_adapters_is_refused_by_name(tmp_path: Path) -> None:
    base = llama()
    model = peft.get_peft_model(
        base, peft.IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[])
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"peft_type is 'IA3': expected LORA"):
        ch.load(tmp_path)


def beside(tmp_path: Path, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """A Llama of theirs with adapters, and ours with the same weights, both in training mode."""
    folder, model = their_folder(tmp_path, "llama")
    ours = ch.load(folder, device="cpu", dtype=dtype, merge=False).model.train()
    for name, p in ours.named_parameters():
        p.requires_grad_("lora_" in name)
    return model.to(dtype).train(), ours


def both_adapters(theirs: nn.Module, ours: nn.Module) -> list[tuple[str, nn.Parameter, nn.Parameter]]:
    """Each parameter of the adapters: its name, theirs and ours."""
    names = {
        "attn.query": "self_attn.q_proj",
        "attn.value": "self_attn.v_proj",
        "mlp.down": "mlp.down_proj",
        "mlp.gate": "mlp.gate_proj",
    }
    found = dict(theirs.named_parameters())
    result = []
    for i in range(2):
        for mine, other in names.items():
            for leaf in "ab":
                theirs_name = f"base_model.model.model.layers.{i}.{other}.lora_{leaf.upper()}.default.weight"
                result.append(
                    (f"{i}.{mine}.{leaf}", found[theirs_name], ours.get_parameter(f"blocks.{i}.{mine}.lora_{leaf}"))
                )
    return result


def loss_of(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


def test_gradients_of_adapters_are_pefts_in_float64(tmp_path: Path) -> None:
    theirs, ours = beside(tmp_path, torch.float64)
    loss_of(theirs(input_ids=IDS).logits).backward()
    loss_of(ours(IDS)).backward()
    for name, a, b in both_adapters(theirs, ours):
        assert a.grad is not None
        assert a.grad.abs().max() > 0
        # theirs computes its norms and rotations in float32
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")
    assert all(p.grad is None for n, p in ours.named_parameters() if "lora_" not in n)


def test_twenty_steps_beside_peft_have_equal_losses(tmp_path: Path) -> None:
    theirs, ours = beside(tmp_path, torch.float32)
    learned = [[p for p in model.parameters() if p.requires_grad] for model in (theirs, ours)]
    steppers = [torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.1) for ps in learned]
    losses: tuple[list[float], list[float]] = ([], [])
    for _ in range(20):
        for logits, stepper, kept in zip(
            (theirs(input_ids=IDS).logits, ours(IDS)), steppers, losses, strict=True
        ):  # fmt: skip
            loss = loss_of(logits)
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            kept.append(float(loss.detach()))
    assert losses[0][-1] < losses[0][0] - 0.2
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=0.0, atol=1e-4)


def test_a_fresh_adapter_is_drawn_like_pefts() -> None:
    """A is uniform within 1 / sqrt(width) in both, and B is 0."""
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=64, target_modules=["q_proj"]))
    ours = ch.build("gpt", vocab=V, width=24, heads=6, depth=1, positions="rotary", bias=False)
    (lora,) = add_adapters(ours, ("q",), rank=64).values()
    a = next(p for n, p in model.named_parameters() if "lora_A" in n)
    for draw in (a, lora.lora_a):
        assert 0.95 / 24**0.5 < draw.abs().max() <= 1 / 24**0.5
        assert abs(draw.std() / (24**-0.5 / 3**0.5) - 1) < 0.06
    assert not lora.lora_b.any()


def test_names_in_the_file_are_pefts(tmp_path: Path) -> None:
    folder, _ = their_folder(tmp_path, "gpt2")
    ch.save(ch.load(folder, device="cpu", merge=False), tmp_path / "ours", layout="peft")
    theirs, ours = (set(load_file(one / "adapter_model.safetensors")) for one in (folder, tmp_path / "ours"))
    assert ours == theirs
