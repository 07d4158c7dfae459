"""The Triton kernels of a step of one token a row, which takes as long as its weights are read.

    ask        norm -> queries, keys, values -> turned by their positions -> keys and values into the cache
    attend     each query over the keys of its row, a part of them a program; the last of them puts the parts together
    add        a product, added to the stream: attention's out, the MLP's down
    inner      norm -> up, perhaps gated -> activation
    read_out   norm -> logits, and of each block of them the largest and the sum of exponentials
    pick       the likeliest token of a row, written down, and its vector as the next input

A program has a few outputs of all rows, so that each weight is read once; its first weights are on their way before it
waits for the kernel before it (programmatic dependent launch). A few rows are multiplied lane by lane; more by matrix
units, and then `normalise` goes before. Sums are of float32 and in a fixed order. Imported only where Triton is.
"""

# mypy: ignore-errors
import triton
import triton.language as tl
import triton.language.extra.cuda


@triton.jit
def _ready(PDL: tl.constexpr):
    """Wait until the kernel before has written all it writes, and let the next one come near."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _measure(y, inside, eps, K: tl.constexpr, CENTRE: tl.constexpr):
    """The mean of each row (r, 1, k), or 0, and what it is multiplied by to have the size of 1; each (r, 1, 1)."""
    mean = tl.zeros_like(tl.sum(y, 2))[:, :, None]
    if CENTRE:
        mean = tl.sum(y, 2)[:, :, None] / K
        y = tl.where(inside, y - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(y * y, 2) / K + eps)[:, :, None]


@triton.jit
def _first(w, place, inside, K: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr):
    """The first columns of the rows `place` of w, which wait for nobody; products of matrix units ask for their own."""
    if DOT:
        return place
    else:
        column = tl.arange(0, BK)[None, None, :]
        w += place.to(tl.int64)[None, :, None] * K + column
        return tl.load(w, mask=inside[None, :, None] & (column < K), other=0.0)


@triton.jit
def _product(
    first, x, scale, shift, w, place, inside, rows, eps,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """x times the rows `place` of w, (ROWS, BN), after a norm: layer, rms or none."""
    k = tl.arange(0, BK)
    if DOT:
        row = tl.arange(0, ROWS)
        acc = tl.zeros((ROWS, BN), tl.float32)
        for start in range(0, K, BK):
            there = start + k < K
            y = tl.load(
                x + row[:, None] * K + start + k[None, :], mask=(row < rows)[:, None] & there[None, :], other=0.0
            )
            now = tl.load(
                w + place.to(tl.int64)[:, None] * K + start + k[None, :],
                mask=inside[:, None] & there[None, :], other=0.0,
            )  # fmt: skip
            acc = tl.dot(y, tl.trans(now), acc, input_precision="ieee")
        return acc
    else:
        row, column = tl.arange(0, ROWS)[:, None, None], k[None, None, :]
        w += place.to(tl.int64)[None, :, None] * K + column
        if NORM != "none" and BK < K:
            wide = tl.arange(0, BD)[None, None, :]
            whole = tl.load(x + row * K + wide, mask=(row < rows) & (wide < K), other=0.0)
            mean, rate = _measure(whole, wide < K, eps, K, NORM == "layer")
        ahead = first
        acc = tl.zeros((ROWS, BN, BK), tl.float32)
        for start in range(0, K, BK):
            now = ahead
            if BK < K:
                ahead = tl.load(w + start + BK, mask=inside[None, :, None] & (start + BK + column < K), other=0.0)
            at = start + column
            y = tl.load(x + row * K + at, mask=(row < rows) & (at < K), other=0.0).to(tl.float32)
            if NORM != "none":
                gain = tl.load(scale + at, mask=at < K, other=0.0).to(tl.float32)
                if NORM == "layer":
                    more = tl.load(shift + at, mask=at < K, other=0.0).to(tl.float32)
                if BK >= K:
                    mean, rate = _measure(y, at < K, eps, K, NORM == "layer")
                y = (y - mean) * rate * gain
                if NORM == "layer":
                    y += more
            acc += now.to(tl.float32) * y
        return tl.sum(acc, 2)


@triton.jit
def ask(
    x, scale, shift, w, bias, cos, sin, at, q, keys, values, rows, eps, limit, cache_row, cache_head,
    K: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, TURN: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values: weights (heads + 2 groups) x E, of which a program has the columns of BN / 2 pairs."""
    HALF: tl.constexpr = (E + 1) // 2
    BLOCKS: tl.constexpr = (HALF + BN // 2 - 1) // (BN // 2)
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    n = tl.arange(0, BN)
    i = block * (BN // 2) + n // 2  # which pair, and of it the first or the second
    if TURN == "neighbours":
        column = 2 * i + n % 2
    else:
        column = i + n % 2 * HALF
    inside = (i < HALF) & (column < E)
    own = head * E + column
    first = _first(w, own, inside, K, BK, DOT)
    _ready(PDL)
    row = tl.arange(0, ROWS)
    here = tl.load(at + row, mask=row < rows, other=0)
    good = (row < rows)[:, None] & inside[None, :] & (here < limit)[:, None]
    if TURN != "none":
        angle = here[:, None] * E + column[None, :]
        c, s = tl.load(cos + angle, mask=good, other=0.0), tl.load(sin + angle, mask=good, other=0.0)
    if BIAS:
        more = tl.load(bias + own, mask=inside, other=0.0).to(tl.float32)
    y = _product(first, x, scale, shift, w, own, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT)
    if BIAS:
        y += more[None, :]
    if TURN != "none":
        if head < HEADS + GROUPS:
            a, b = tl.split(tl.reshape(y, (ROWS, BN // 2, 2)))
            y = y * c + tl.reshape(tl.join(b, a), (ROWS, BN)) * s
    spot = row.to(tl.int64)[:, None] * cache_row + here[:, None] * E + column[None, :]
    if head < HEADS:
        tl.store(q + row[:, None] * (HEADS * E) + head * E + column[None, :], y, mask=good)
    elif head < HEADS + GROUPS:
        tl.store(keys + spot + (head - HEADS).to(tl.int64) * cache_head, y, mask=good)
    else:
        tl.store(values + spot + (head - HEADS - GROUPS).to(tl.int64) * cache_head, y, mask=good)


@triton.jit
def place(
    y, cos, sin, at, q, keys, values, limit, cache_row, cache_head,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, TURN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What `ask` does after its product, for many rows, whose product is another's."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BE)
    _ready(PDL)
    here = tl.load(at + row)
    good = column < tl.where(here < limit, E, 0)
    y += row * ((HEADS + 2 * GROUPS) * E) + head * E
    out = tl.load(y + column, mask=good, other=0.0).to(tl.float32)
    if TURN != "none":
        if head < HEADS + GROUPS:
            if TURN == "neighbours":
                other = column ^ 1
            else:
                other = (column + E // 2) % E
            partner = tl.load(y + other, mask=good, other=0.0).to(tl.float32)
            angle = here * E + column
            out = out * tl.load(cos + angle, mask=good, other=0.0)
            out += partner * tl.load(sin + angle, mask=good, other=0.0)
    spot = row * cache_row + here * E + column
    if head < HEADS:
        tl.store(q + row * (HEADS * E) + head * E + column, out, mask=good)
    elif head < HEADS + GROUPS:
        tl.store(keys + spot + (head - HEADS).to(tl.int64) * cache_head, out, mask=good)
    else:
        tl.store(values + spot + (head - HEADS - GROUPS).to(tl.int64) * cache_head, out, mask=good)


@triton.jit
def attend(
    q, keys, values, at, parts, lse, arrived, said, scale, cache_row, cache_head,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr, BS: tl.constexpr, BE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The queries that share the keys of a row, over one part of them (Dao et al. 2023, flash-decoding)."""
    SHARE: tl.constexpr = HEADS // GROUPS
    row, group, split = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS, tl.program_id(1)
    share, e = tl.arange(0, BS), tl.arange(0, BE)
    keys += row.to(tl.int64) * cache_row + group.to(tl.int64) * cache_head
    values += row.to(tl.int64) * cache_row + group.to(tl.int64) * cache_head
    _ready(PDL)
    end = tl.load(at + row).to(tl.int32) + 1
    low = 0
    if WINDOW > 0:
        low = tl.maximum(end - WINDOW, 0)
    each = (end - low + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK
    low += split * each
    end = tl.minimum(low + each, end)
    head = group * SHARE + share
    asked = (share < SHARE)[:, None] & (e < E)[None, :]
    question = tl.load(q + row * (HEADS * E) + head[:, None] * E + e[None, :], mask=asked, other=0.0)
    top = tl.full((BS,), float("-inf"), tl.float32)
    total = tl.zeros((BS,), tl.float32)
    out = tl.zeros((BS, BE), tl.float32)
    for start in tl.range(low, end, BLOCK):
        j = start + tl.arange(0, BLOCK)
        k = tl.load(keys + j[None, :] * E + e[:, None], mask=(j < end)[None, :] & (e < E)[:, None], other=0.0)
        v = tl.load(values + j[:, None] * E + e[None, :], mask=(j < end)[:, None] & (e < E)[None, :], other=0.0)
        s = tl.dot(question, k, input_precision="ieee") * scale
        s = tl.where((j < end)[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(top - new)
        total = total * fade + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * fade[:, None], input_precision="ieee")
        top = new
    safe = tl.where(total > 0.0, total, 1.0)
    out = out / safe[:, None]
    place = head[:, None] * E + e[None, :]
    said += row * (HEADS * E) + place
    if SPLITS == 1:
        tl.store(said, out, mask=asked)
    else:
        parts += row * (SPLITS * HEADS * E) + place
        lse += row * (SPLITS * HEADS) + head
        tl.store(parts + split * (HEADS * E), out, mask=asked)
        tl.store(lse + split * HEADS, top + tl.log2(safe), mask=share < SHARE)  # without keys, -inf
        tl.debug_barrier()  # all of it is written before this part is counted
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrived + tl.program_id(0), 0)
            top = tl.full((BS,), float("-inf"), tl.float32)
            for s in tl.static_range(SPLITS):
                top = tl.maximum(top, tl.load(lse + s * HEADS, mask=share < SHARE, other=0.0, cache_modifier=".cg"))
            total, out = tl.zeros((BS,), tl.float32), tl.zeros((BS, BE), tl.float32)
            for s in tl.static_range(SPLITS):
                part = tl.exp2(tl.load(lse + s * HEADS, mask=share < SHARE, other=0.0, cache_modifier=".cg") - top)
                total += part
                one = tl.load(parts + s * (HEADS * E), mask=asked, other=0.0, cache_modifier=".cg")
                out += part[:, None] * one
            tl.store(said, out / total[:, None], mask=asked)


@triton.jit
def normalise(x, scale, shift, out, eps, K: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr):
    """The norm of each row, for many rows; "none" only copies."""
    row, column = tl.program_id(0), tl.arange(0, BD)[None, None, :]
    inside = column < K
    _ready(PDL)
    y = tl.load(x + row * K + column, mask=inside, other=0.0)
    if NORM != "none":
        mean, rate = _measure(y, inside, eps, K, NORM == "layer")
        y = (y - mean) * rate * tl.load(scale + column, mask=inside, other=0.0)
    if NORM == "layer":
        y += tl.load(shift + column, mask=inside, other=0.0)
    tl.store(out + row * K + column, y, mask=inside)


@triton.jit
def add(
    x, w, bias, stream, rows, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A product, added to the stream."""
    place = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = place < n
    first = _first(w, place, inside, K, BK, DOT)
    _ready(PDL)
    row = tl.arange(0, ROWS)
    there, good = stream + row[:, None] * n + place[None, :], (row < rows)[:, None] & inside[None, :]
    before = tl.load(there, mask=good, other=0.0)
    if BIAS:
        before += tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = _product(first, x, x, x, w, place, inside, rows, 0.0, K, ROWS, BN, BK, 1, "none", DOT)
    tl.store(there, y + before, mask=good)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _active(x, KIND: tl.constexpr):
    """The activation that a word names: see layers.mlp."""
    if KIND == "relu":
        return tl.where(x < 0.0, 0.0, x)
    elif KIND == "leaky_relu":
        return tl.where(x < 0.0, 0.01 * x, x)
    elif KIND == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "tanh":
        return _tanh(x)
    else:
        return x * tl.sigmoid(x)  # silu, and the gate of swiglu


@triton.jit
def inner(
    x, scale, shift, w, bias, out, rows, eps, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The inside of an MLP, n wide. A gate and what it lets through, n rows apart, are neighbours in a program."""
    i, row = tl.arange(0, BN), tl.arange(0, ROWS)
    if KIND == "swiglu":
        one = tl.program_id(0) * (BN // 2) + i // 2
        place = one + i % 2 * n
    else:
        one = tl.program_id(0) * BN + i
        place = one
    inside = one < n
    first = _first(w, place, inside, K, BK, DOT)
    if BIAS:
        more = tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
    _ready(PDL)
    y = _product(first, x, scale, shift, w, place, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT)
    if BIAS:
        y += more[None, :]
    if KIND == "swiglu":
        gate, up = tl.split(tl.reshape(y, (ROWS, BN // 2, 2)))
        at = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        good = (row < rows)[:, None] & (at < n)[None, :]
        tl.store(out + row[:, None] * n + at[None, :], _active(gate, KIND) * up, mask=good)
    else:
        good = (row < rows)[:, None] & inside[None, :]
        tl.store(out + row[:, None] * n + one[None, :], _active(y, KIND), mask=good)


@triton.jit
def read_out(
    x, scale, shift, w, logits, most, which, total, rows, eps, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The logits; and of each block of them, for `pick`, the largest, its place, and the sum of exponentials."""
    block, blocks = tl.program_id(0), tl.num_programs(0)
    place, row = block * BN + tl.arange(0, BN), tl.arange(0, ROWS)
    inside = place < n
    first = _first(w, place, inside, K, BK, DOT)
    _ready(PDL)
    y = _product(first, x, scale, shift, w, place, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT)
    there = row < rows
    at = row.to(tl.int64)[:, None] * n + place[None, :]
    tl.store(logits + at, y, mask=there[:, None] & inside[None, :])
    y = tl.where(inside[None, :], y, float("-inf"))
    top = tl.max(y, 1)
    tl.store(most + row * blocks + block, top, mask=there)
    tl.store(which + row * blocks + block, block * BN + tl.argmax(y, 1), mask=there)
    tl.store(total + row * blocks + block, tl.sum(tl.exp(y - top[:, None]), 1), mask=there)


@triton.jit
def pick(
    most, which, total, given, weight, token, at, count, tokens, scores, stream, table, places, scale, rows, blocks,
    last,
    K: tl.constexpr, BD: tl.constexpr, BB: tl.constexpr, GIVEN: tl.constexpr, PLACES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The likeliest token of each row (or the GIVEN one) and its log-probability, written down at the row's count.

    Then its vector enters the stream: the row stands one token further.
    """
    row = tl.program_id(0).to(tl.int64)
    _ready(PDL)
    turn, here = tl.load(count + row), tl.load(at + row) + 1
    if GIVEN:
        chosen = tl.load(given + row)
        value = tl.load(weight + row)
    else:
        b = tl.arange(0, BB)
        top = tl.full((BB,), -1.0e30, tl.float32)
        whole = tl.zeros((BB,), tl.float32)
        place = tl.zeros((BB,), tl.int32)
        for start in range(0, blocks, BB):
            inside = start + b < blocks
            y = tl.load(most + row * blocks + start + b, mask=inside, other=-1.0e30)
            new = tl.maximum(top, y)
            part = tl.load(total + row * blocks + start + b, mask=inside, other=0.0)
            whole = whole * tl.exp(top - new) + part * tl.exp(y - new)
            place = tl.where(y > top, start + b, place)
            top = new
        best = tl.max(top, 0)
        first = tl.min(tl.where(top == best, place, blocks - 1), 0)  # of equals the first, as torch does
        chosen = tl.load(which + row * blocks + first).to(tl.int64)
        value = -tl.log(tl.sum(whole * tl.exp(top - best), 0))
    tl.debug_barrier()  # all lanes know where they are before one says where they will be
    tl.store(token + row, chosen)
    tl.store(tokens + turn * rows + row, chosen)
    tl.store(scores + turn * rows + row, value)
    tl.store(count + row, turn + 1)
    tl.store(at + row, here)
    column = tl.arange(0, BD)
    x = tl.load(table + chosen * K + column, mask=column < K, other=0.0).to(tl.float32) * scale
    if PLACES:
        x += tl.load(places + tl.minimum(here, last) * K + column, mask=column < K, other=0.0).to(tl.float32)
    tl.store(stream + row * K + column, x, mask=column < K)
