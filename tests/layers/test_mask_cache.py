"""What is computed from a mask is kept for the next layers and steps, until one of its tensors is written to."""

import gc

import pytest
import torch
from torch import Tensor, nn

from clearhead.layers import Block, Cache, Mask, attend
from clearhead.layers import fused as fused_file
from clearhead.layers.mask import MaskCache

B, H, T, E = 2, 3, 6, 4

# Fields of a mask with a tensor, and a write to that tensor which changes the mask.
WRITES = {
    "lengths": ({}, torch.tensor([1, 2]), lambda t: t.add_(3)),
    "offset": ({"causal": True}, torch.tensor([1, 0]), lambda t: t.add_(3)),
    "documents": ({}, torch.tensor([[0, 0, 1, 1, 2, 2]]), lambda t: t.floor_divide_(2)),
    "allow": ({}, torch.eye(T, dtype=torch.bool), lambda t: t.fill_(True)),
    "a view of lengths": ({}, torch.tensor([1, 2]), lambda t: t[1:].fill_(T)),
}


def field(name: str) -> str:
    return name.split()[-1]


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, T, E) for _ in range(3)]


@pytest.fixture
def rendered(monkeypatch) -> list[Mask]:
    """The masks that were rendered as a dense tensor, call by call."""
    masks, dense = [], Mask.dense

    def record(self, *args, **kwargs):
        masks.append(self)
        return dense(self, *args, **kwargs)

    monkeypatch.setattr(Mask, "dense", record)
    return masks


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize("name", WRITES)
def test_attend_follows_a_write_to_a_tensor_of_its_mask(name, inference):
    more, start, write = WRITES[name]
    with torch.inference_mode(inference):
        tensor = start.clone()
        mask = Mask(**{field(name): tensor}, **more)
        before = attend(*inputs(), mask=mask)
        write(tensor)
        after = attend(*inputs(), mask=mask)
        expected = attend(*inputs(), mask=Mask(**{field(name): tensor.clone()}, **more))
    assert torch.equal(after, expected)
    assert not torch.equal(after, before)


@pytest.mark.parametrize("name", WRITES)
def test_the_blocks_of_a_gpu_kernel_follow_it_too(name, monkeypatch):
    def create(predicate, b, h, q, k, device):  # instead of FlexAttention's, which takes seconds to compile
        index = torch.meshgrid(*(torch.arange(n, device=device) for n in (b, h, q, k)), indexing="ij")
        return predicate(*index)

    monkeypatch.setattr(fused_file, "_compiled_blocks", lambda: create)
    more, start, write = WRITES[name]
    tensor = start.clone()
    mask = Mask(**{field(name): tensor}, **more)

    def blocks(mask: Mask) -> Tensor:
        return fused_file._blocks(mask, B, H, T, T, torch.device("cpu"))

    before = blocks(mask)
    assert blocks(mask) is before
    write(tensor)
    after = blocks(mask)
    assert torch.equal(after, blocks(Mask(**{field(name): tensor.clone()}, **more)))
    assert not torch.equal(after, before)


def test_all_layers_share_one_rendering(rendered):
    blocks, x = nn.ModuleList(Block(H * E, H) for _ in range(4)), torch.randn(B, T, H * E)
    mask = Mask(causal=True, lengths=[2, T])
    for block in blocks:
        x = block(x, mask=mask)
    assert rendered == [mask]


def test_all_steps_of_a_search_share_the_rendering_of_the_source(rendered):
    block, cache = Block(H * E, H, cross=True), Cache(B, H, T, E)
    source = Mask(lengths=torch.tensor([2, 5]))
    with torch.no_grad():
        memory = block.cross.remember(torch.randn(B, 5, H * E))
        for _ in range(T):
            block(torch.randn(B, 1, H * E), memory, mask=cache.mask(), context_mask=source, cache=cache)
            cache.advance(1)
    assert rendered == [source]


def test_ragged_decoding_renders_one_mask_per_step(rendered):
    blocks = nn.ModuleList(Block(H * E, H) for _ in range(3))
    caches = [Cache(B, H, 8, E) for _ in blocks]
    with torch.no_grad():
        for counts in ([1, 3], [1, 1], [1, 1]):  # the first step is plain causal and needs no rendering
            x, mask = torch.randn(B, max(counts), H * E), caches[0].mask()
            for block, cache in zip(blocks, caches, strict=True):
                x = block(x, mask=mask, cache=cache)
            for cache in caches:
                cache.advance(torch.tensor(counts))
    assert len(rendered) == len(set(rendered)) == 2


def test_inference_tensors_count_no_writes_so_nothing_is_kept(rendered):
    with torch.inference_mode():
        mask = Mask(lengths=torch.tensor([1, 2]))
        assert mask.version is None
        for _ in range(2):
            attend(*inputs(), mask=mask)
    assert len(rendered) == 2


def test_a_mask_without_tensors_is_kept_in_inference_mode_too(rendered):
    with torch.inference_mode():
        mask = Mask(causal=True, window=3)
        for _ in range(2):
            attend(*inputs(), mask=mask)
    assert len(rendered) == 1


def test_a_mask_that_was_used_in_inference_mode_can_be_trained_with():
    """Inference tensors cannot be saved for a backward pass."""
    q, k, v = inputs()
    mask = Mask(lengths=[0, 5])
    with torch.inference_mode():
        attend(q, k, v, mask=mask)
    attend(q.requires_grad_(), k, v, mask=mask).sum().backward()
    assert q.grad.any()


def test_entries_of_old_versions_and_of_masks_that_are_gone_are_freed():
    cache, lengths = MaskCache(), torch.tensor([0])
    mask = Mask(lengths=lengths)
    for step in range(3):
        cache.of(mask)[step] = step
        assert list(cache.of(mask)) == [step]
        lengths += 1
    assert len(cache._entries) == 1
    del mask
    gc.collect()
    assert len(cache._entries) == 0


def test_nothing_is_kept_under_a_torch_func_transform():
    """A tensor of a transform must not outlive it."""
    q, k, v = inputs()
    mask = Mask(lengths=[2, 5])

    def loss(q: Tensor) -> Tensor:
        return attend(q, k, v, mask=mask).square().sum()

    gradient = torch.func.grad(loss)(q)
    assert not fused_file._TILES.of(mask)
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(leaf), leaf)[0], gradient)
