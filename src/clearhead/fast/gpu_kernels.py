"""The Triton kernels of a decode step of one token per row; reading the weights takes almost all of its time.

    project_qkv      norm -> queries, keys and values -> rotary positions -> keys and values into the KV cache
    store_qkv        the same without the product, which torch computes for many rows
    attend           the queries of a row over its keys, split among programs; the last program combines the splits
    add_projection   a product added to the residual stream: the attention's output map, the MLP's down map
    project_mlp      norm -> the MLP's up map, perhaps gated -> activation
    project_logits   norm -> logits; of each block of them also the maximum and the sum of exponentials
    append_token     choose the likeliest token of a row, append it, and embed it as the next input
    normalise        a norm alone, where the products use matrix units

A program computes a few outputs for all rows, so that each weight is read once. It loads its first weights before it
waits for the previous kernel (programmatic dependent launch). Products of a few rows are computed lane by lane, those
of more rows by matrix units (DOT). All sums are in float32 and in a fixed order. This module is imported only where
Triton is installed.

Names of sizes: K is the width of a product's input; BN, BK, BD, BE, BS and BB are block sizes, powers of 2.
"""

# mypy: ignore-errors
import triton
import triton.language as tl
import triton.language.extra.cuda


@triton.jit
def _wait_for_previous(PDL: tl.constexpr):
    """Wait until the previous kernel has written its results, and allow the next one to be launched."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _norm_statistics(y, inside, eps, K: tl.constexpr, CENTRE: tl.constexpr):
    """The mean of each row of y (r, 1, k), 0 unless CENTRE, and its inverse standard deviation; each (r, 1, 1)."""
    mean = tl.zeros_like(tl.sum(y, 2))[:, :, None]
    if CENTRE:  # columns outside the row must stay 0
        # "layer" subtracts the mean; "rms" does not
        mean = tl.sum(y, 2)[:, :, None] / K
        y = tl.where(inside, y - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(y * y, 2) / K + eps)[:, :, None]


@triton.jit
def _prefetch(w, index, inside, K: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr):
    """Load the first columns of the rows `index` of w, before the input is ready; with DOT, _product loads them all."""
    if DOT:
        return index
    else:
        column = tl.arange(0, BK)[None, None, :]
        w += index.to(tl.int64)[None, :, None] * K + column
        return tl.load(w, mask=inside[None, :, None] & (column < K), other=0.0)


@triton.jit
def _product(
    first, x, scale, shift, w, index, inside, rows, eps,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """norm(x) times the rows `index` of w: (ROWS, BN). NORM is layer, rms or none; `first` is _prefetch's result."""
    k = tl.arange(0, BK)
    if DOT:
        # matrix units: blocks of BK columns, of an input that `normalise` has prepared
        row = tl.arange(0, ROWS)
        acc = tl.zeros((ROWS, BN), tl.float32)
        for start in range(0, K, BK):
            # the last block may reach beyond the row
            valid = start + k < K
            y = tl.load(
                x + row[:, None] * K + start + k[None, :],
                mask=(row < rows)[:, None] & valid[None, :],
                other=0.0,
            )
            weights = tl.load(
                w + index.to(tl.int64)[:, None] * K + start + k[None, :],
                mask=inside[:, None] & valid[None, :], other=0.0,
            )  # fmt: skip
            acc = tl.dot(y, tl.trans(weights), acc, input_precision="ieee")
        return acc
    else:
        # lane by lane: axes (row of x, row of w, column)
        row, column = tl.arange(0, ROWS)[:, None, None], k[None, None, :]
        w += index.to(tl.int64)[None, :, None] * K + column
        # a norm needs the whole row: with several blocks of columns it is read once before
        if NORM != "none" and BK < K:
            all_columns = tl.arange(0, BD)[None, None, :]
            all_x = tl.load(
                x + row * K + all_columns, mask=(row < rows) & (all_columns < K), other=0.0
            )
            mean, inverse_std = _norm_statistics(all_x, all_columns < K, eps, K, NORM == "layer")
        next_weights = first
        acc = tl.zeros((ROWS, BN, BK), tl.float32)
        for start in range(0, K, BK):
            weights = next_weights
            if BK < K:  # the next block is on its way while this one is multiplied
                next_weights = tl.load(
                    w + start + BK,
                    mask=inside[None, :, None] & (start + BK + column < K),
                    other=0.0,
                )
            columns = start + column
            y = tl.load(x + row * K + columns, mask=(row < rows) & (columns < K), other=0.0).to(
                tl.float32
            )
            if NORM != "none":
                scales = tl.load(scale + columns, mask=columns < K, other=0.0).to(tl.float32)
                if NORM == "layer":
                    shifts = tl.load(shift + columns, mask=columns < K, other=0.0).to(tl.float32)
                if BK >= K:
                    mean, inverse_std = _norm_statistics(y, columns < K, eps, K, NORM == "layer")
                y = (y - mean) * inverse_std * scales
                if NORM == "layer":
                    y += shifts
            acc += weights.to(tl.float32) * y
        return tl.sum(acc, 2)  # one sum over the lanes at the end


@triton.jit
def project_qkv(
    x, scale, shift, w, bias, cos, sin, at, q, keys, values, rows, eps, limit, cache_row, cache_head,
    K: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, ROTARY: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values: w has (heads + 2 kv_heads) x E rows, of which a program takes BN / 2 rotary pairs."""
    HALF: tl.constexpr = (E + 1) // 2
    BLOCKS: tl.constexpr = (HALF + BN // 2 - 1) // (BN // 2)
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    n = tl.arange(0, BN)
    # the rotary pair of each column; n % 2 is its place in the pair
    pair = block * (BN // 2) + n // 2
    if ROTARY == "neighbours":
        # (2i, 2i + 1), as in the paper
        column = 2 * pair + n % 2
    else:
        # (i, i + E / 2), as in Llama
        column = pair + n % 2 * HALF
    inside = (pair < HALF) & (column < E)
    index = head * E + column  # the row of w
    first = _prefetch(w, index, inside, K, BK, DOT)
    _wait_for_previous(PDL)
    row = tl.arange(0, ROWS)
    # rows past the end of the cache compute nothing: their tokens are dropped
    position = tl.load(at + row, mask=row < rows, other=0)
    mask = (row < rows)[:, None] & inside[None, :] & (position < limit)[:, None]
    # loaded before the product, which hides the time that it takes
    if ROTARY != "none":
        angle = position[:, None] * E + column[None, :]
        cosine, sine = (
            tl.load(cos + angle, mask=mask, other=0.0),
            tl.load(sin + angle, mask=mask, other=0.0),
        )
    if BIAS:
        biases = tl.load(bias + index, mask=inside, other=0.0).to(tl.float32)
    y = _product(
        first, x, scale, shift, w, index, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT
    )
    if BIAS:
        y += biases[None, :]
    # rotate queries and keys: (a, b) becomes (a, b) cos + (b, a) sin, with the sign in sin
    if ROTARY != "none":
        if head < HEADS + KV_HEADS:
            # values are not rotated; a pair lies in neighbouring lanes, whatever its columns are
            a, b = tl.split(tl.reshape(y, (ROWS, BN // 2, 2)))
            y = y * cosine + tl.reshape(tl.join(b, a), (ROWS, BN)) * sine
    # the first heads are queries, then come keys, then values
    cache_offset = row.to(tl.int64)[:, None] * cache_row + position[:, None] * E + column[None, :]
    if head < HEADS:
        tl.store(q + row[:, None] * (HEADS * E) + head * E + column[None, :], y, mask=mask)
    elif head < HEADS + KV_HEADS:
        tl.store(keys + cache_offset + (head - HEADS).to(tl.int64) * cache_head, y, mask=mask)
    else:
        tl.store(
            values + cache_offset + (head - HEADS - KV_HEADS).to(tl.int64) * cache_head,
            y,
            mask=mask,
        )


@triton.jit
def store_qkv(
    y, cos, sin, at, q, keys, values, limit, cache_row, cache_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, ROTARY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Rotate and store queries, keys and values that torch has projected; project_qkv does the same for few rows."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BE)
    _wait_for_previous(PDL)
    position = tl.load(at + row)
    mask = column < tl.where(position < limit, E, 0)
    y += row * ((HEADS + 2 * KV_HEADS) * E) + head * E
    out = tl.load(y + column, mask=mask, other=0.0).to(tl.float32)
    if ROTARY != "none":
        if head < HEADS + KV_HEADS:
            # the other column of each pair
            if ROTARY == "neighbours":
                partner_column = column ^ 1
            else:
                partner_column = (column + E // 2) % E
            partner = tl.load(y + partner_column, mask=mask, other=0.0).to(tl.float32)
            angle = position * E + column
            out = out * tl.load(cos + angle, mask=mask, other=0.0)
            out += partner * tl.load(sin + angle, mask=mask, other=0.0)
    cache_offset = row * cache_row + position * E + column
    if head < HEADS:
        tl.store(q + row * (HEADS * E) + head * E + column, out, mask=mask)
    elif head < HEADS + KV_HEADS:
        tl.store(keys + cache_offset + (head - HEADS).to(tl.int64) * cache_head, out, mask=mask)
    else:
        tl.store(
            values + cache_offset + (head - HEADS - KV_HEADS).to(tl.int64) * cache_head,
            out,
            mask=mask,
        )


@triton.jit
def attend(
    q, keys, values, at, partial_out, lse, finished_splits, attention_out, scale, cache_row, cache_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, E: tl.constexpr, BS: tl.constexpr, BE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention of the queries that share a key head, over one split of the keys (flash-decoding, Dao et al. 2023)."""
    SHARING: tl.constexpr = HEADS // KV_HEADS
    row, kv_head, split = (
        tl.program_id(0) // KV_HEADS,
        tl.program_id(0) % KV_HEADS,
        tl.program_id(1),
    )
    member, e = tl.arange(0, BS), tl.arange(0, BE)
    keys += row.to(tl.int64) * cache_row + kv_head.to(tl.int64) * cache_head
    values += row.to(tl.int64) * cache_row + kv_head.to(tl.int64) * cache_head
    _wait_for_previous(PDL)
    # the keys that the query may attend to, and the part of them that this program takes
    end_key = tl.load(at + row).to(tl.int32) + 1
    start_key = 0
    if WINDOW > 0:
        start_key = tl.maximum(end_key - WINDOW, 0)
    keys_per_split = (end_key - start_key + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK
    start_key += split * keys_per_split
    end_key = tl.minimum(start_key + keys_per_split, end_key)
    head = kv_head * SHARING + member
    mask = (member < SHARING)[:, None] & (e < E)[None, :]
    query = tl.load(q + row * (HEADS * E) + head[:, None] * E + e[None, :], mask=mask, other=0.0)
    # the softmax of all blocks so far: out and sum_exp are relative to max_score (Milakov and Gimelshein 2018)
    max_score = tl.full((BS,), float("-inf"), tl.float32)
    sum_exp = tl.zeros((BS,), tl.float32)
    out = tl.zeros((BS, BE), tl.float32)
    for block_start in tl.range(start_key, end_key, BLOCK):
        # (BS, BLOCK) scores at a time: the whole row of scores is never stored
        j = block_start + tl.arange(0, BLOCK)
        k = tl.load(
            keys + j[None, :] * E + e[:, None],
            mask=(j < end_key)[None, :] & (e < E)[:, None],
            other=0.0,
        )
        v = tl.load(
            values + j[:, None] * E + e[None, :],
            mask=(j < end_key)[:, None] & (e < E)[None, :],
            other=0.0,
        )
        s = tl.dot(query, k, input_precision="ieee") * scale
        s = tl.where((j < end_key)[None, :], s, float("-inf"))
        new_max = tl.maximum(max_score, tl.max(s, 1))
        p = tl.exp2(s - new_max[:, None])  # the scale contains log2(e)
        rescale = tl.exp2(max_score - new_max)
        sum_exp = sum_exp * rescale + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * rescale[:, None], input_precision="ieee")
        max_score = new_max
    safe_sum = tl.where(sum_exp > 0.0, sum_exp, 1.0)  # a split without keys has none
    out = out / safe_sum[:, None]
    offset = head[:, None] * E + e[None, :]
    attention_out += row * (HEADS * E) + offset
    if SPLITS == 1:
        tl.store(attention_out, out, mask=mask)
    else:
        partial_out += row * (SPLITS * HEADS * E) + offset
        lse += row * (SPLITS * HEADS) + head
        tl.store(partial_out + split * (HEADS * E), out, mask=mask)
        # A split without keys stores -inf.
        tl.store(lse + split * HEADS, max_score + tl.log2(safe_sum), mask=member < SHARING)
        tl.debug_barrier()  # everything is written before this split is counted as finished
        # the last split to finish adds the outputs of all, each times its share of the whole sum
        if tl.atomic_add(finished_splits + tl.program_id(0), 1, sem="acq_rel") == SPLITS - 1:
            # back to 0, where every replay of the graph begins to count
            tl.store(finished_splits + tl.program_id(0), 0)
            max_score = tl.full((BS,), float("-inf"), tl.float32)
            for s in tl.static_range(SPLITS):
                # .cg reads the L2 cache: other processors have written these numbers
                max_score = tl.maximum(
                    max_score,
                    tl.load(
                        lse + s * HEADS, mask=member < SHARING, other=0.0, cache_modifier=".cg"
                    ),
                )
            sum_exp, out = tl.zeros((BS,), tl.float32), tl.zeros((BS, BE), tl.float32)
            for s in tl.static_range(SPLITS):
                weight = tl.exp2(
                    tl.load(lse + s * HEADS, mask=member < SHARING, other=0.0, cache_modifier=".cg")
                    - max_score
                )
                sum_exp += weight
                split_out = tl.load(
                    partial_out + s * (HEADS * E), mask=mask, other=0.0, cache_modifier=".cg"
                )
                out += weight[:, None] * split_out
            tl.store(attention_out, out / sum_exp[:, None], mask=mask)


@triton.jit
def normalise(
    x,
    scale,
    shift,
    out,
    eps,
    K: tl.constexpr,
    BD: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """The norm of each row; "none" only copies."""
    row, column = tl.program_id(0), tl.arange(0, BD)[None, None, :]
    inside = column < K
    _wait_for_previous(PDL)
    y = tl.load(x + row * K + column, mask=inside, other=0.0)
    if NORM != "none":
        mean, inverse_std = _norm_statistics(y, inside, eps, K, NORM == "layer")
        y = (y - mean) * inverse_std * tl.load(scale + column, mask=inside, other=0.0)
    if NORM == "layer":
        y += tl.load(shift + column, mask=inside, other=0.0)
    tl.store(out + row * K + column, y, mask=inside)


@triton.jit
def add_projection(
    x, w, bias, residual, rows, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """residual += x w' + bias."""
    index = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = index < n
    first = _prefetch(w, index, inside, K, BK, DOT)
    _wait_for_previous(PDL)
    row = tl.arange(0, ROWS)
    pointers, mask = (
        residual + row[:, None] * n + index[None, :],
        (row < rows)[:, None] & inside[None, :],
    )
    old = tl.load(pointers, mask=mask, other=0.0)
    if BIAS:
        old += tl.load(bias + index, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = _product(first, x, x, x, w, index, inside, rows, 0.0, K, ROWS, BN, BK, 1, "none", DOT)
    tl.store(pointers, y + old, mask=mask)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """The activation of this name: see layers.mlp."""
    if ACTIVATION == "relu":
        return tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "leaky_relu":
        return tl.where(x < 0.0, 0.01 * x, x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "tanh":
        return _tanh(x)
    else:
        return x * tl.sigmoid(x)  # silu, and the gate of swiglu


@triton.jit
def project_mlp(
    x, scale, shift, w, bias, out, rows, eps, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The hidden units of an MLP, n of them. With a gate, the rows i and i + n of w are computed side by side."""
    lane, row = tl.arange(0, BN), tl.arange(0, ROWS)
    if ACTIVATION == "swiglu":  # neighbouring lanes are the gate and the map of one unit
        unit = tl.program_id(0) * (BN // 2) + lane // 2
        index = unit + lane % 2 * n
    else:
        unit = tl.program_id(0) * BN + lane
        index = unit
    inside = unit < n
    first = _prefetch(w, index, inside, K, BK, DOT)
    if BIAS:
        biases = tl.load(bias + index, mask=inside, other=0.0).to(tl.float32)
    _wait_for_previous(PDL)
    y = _product(
        first, x, scale, shift, w, index, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT
    )
    if BIAS:
        y += biases[None, :]
    if ACTIVATION == "swiglu":
        gate, up = tl.split(tl.reshape(y, (ROWS, BN // 2, 2)))
        units = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        mask = (row < rows)[:, None] & (units < n)[None, :]
        tl.store(
            out + row[:, None] * n + units[None, :], _activate(gate, ACTIVATION) * up, mask=mask
        )
    else:
        mask = (row < rows)[:, None] & inside[None, :]
        tl.store(out + row[:, None] * n + unit[None, :], _activate(y, ACTIVATION), mask=mask)


@triton.jit
def project_logits(
    x, scale, shift, w, logits, block_max, block_argmax, block_sum, rows, eps, n,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The logits; and for append_token the maximum, its index and the sum of exponentials of each block of them."""
    block, blocks = tl.program_id(0), tl.num_programs(0)
    index, row = block * BN + tl.arange(0, BN), tl.arange(0, ROWS)
    inside = index < n
    first = _prefetch(w, index, inside, K, BK, DOT)
    _wait_for_previous(PDL)
    y = _product(
        first, x, scale, shift, w, index, inside, rows, eps, K, ROWS, BN, BK, BD, NORM, DOT
    )
    valid = row < rows
    offset = row.to(tl.int64)[:, None] * n + index[None, :]
    tl.store(logits + offset, y, mask=valid[:, None] & inside[None, :])
    # of this block, so that append_token reads a few numbers instead of all logits
    y = tl.where(inside[None, :], y, float("-inf"))
    max_logit = tl.max(y, 1)
    tl.store(block_max + row * blocks + block, max_logit, mask=valid)
    tl.store(block_argmax + row * blocks + block, block * BN + tl.argmax(y, 1), mask=valid)
    tl.store(
        block_sum + row * blocks + block, tl.sum(tl.exp(y - max_logit[:, None]), 1), mask=valid
    )


@triton.jit
def append_token(
    block_max, block_argmax, block_sum, given_token, given_score, token, at, count, tokens, scores, residual,
    embedding, position_table, embed_scale, rows, blocks, last_position,
    K: tl.constexpr, BD: tl.constexpr, BB: tl.constexpr, GIVEN: tl.constexpr, POSITIONS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Append the likeliest token of each row (or the GIVEN one) with its log-probability, and embed it.

    The token and its score are stored at the row's step count; then the row's position advances by one.
    """
    row = tl.program_id(0).to(tl.int64)
    _wait_for_previous(PDL)
    step, position = tl.load(count + row), tl.load(at + row) + 1
    if GIVEN:
        # sampled, or computed by torch for many rows
        chosen = tl.load(given_token + row)
        score = tl.load(given_score + row)
    else:
        # compare the maxima of all blocks, BB at a time; sum_exp is relative to max_logit, lane by lane
        b = tl.arange(0, BB)
        max_logit = tl.full((BB,), -1.0e30, tl.float32)
        sum_exp = tl.zeros((BB,), tl.float32)
        best_block = tl.zeros((BB,), tl.int32)
        for start in range(0, blocks, BB):
            inside = start + b < blocks
            maxima = tl.load(block_max + row * blocks + start + b, mask=inside, other=-1.0e30)
            new_max = tl.maximum(max_logit, maxima)
            sums = tl.load(block_sum + row * blocks + start + b, mask=inside, other=0.0)
            sum_exp = sum_exp * tl.exp(max_logit - new_max) + sums * tl.exp(maxima - new_max)
            best_block = tl.where(maxima > max_logit, start + b, best_block)
            max_logit = new_max
        overall_max = tl.max(max_logit, 0)
        # Of equal logits the first is chosen, as torch does.
        first_block = tl.min(tl.where(max_logit == overall_max, best_block, blocks - 1), 0)
        chosen = tl.load(block_argmax + row * blocks + first_block).to(tl.int64)
        # log softmax at its maximum: max - (max + log sum)
        score = -tl.log(tl.sum(sum_exp * tl.exp(max_logit - overall_max), 0))
    tl.debug_barrier()  # all lanes have read the position before one of them advances it
    tl.store(token + row, chosen)
    tl.store(tokens + step * rows + row, chosen)
    tl.store(scores + step * rows + row, score)
    tl.store(count + row, step + 1)
    tl.store(at + row, position)
    # the residual stream of the next step begins with the embedding of the token and of its position
    column = tl.arange(0, BD)
    x = (
        tl.load(embedding + chosen * K + column, mask=column < K, other=0.0).to(tl.float32)
        * embed_scale
    )
    if POSITIONS:
        # past the end of a full cache the last position is read: the token is dropped anyway
        x += tl.load(
            position_table + tl.minimum(position, last_position) * K + column,
            mask=column < K,
            other=0.0,
        ).to(tl.float32)
    tl.store(residual + row * K + column, x, mask=column < K)
