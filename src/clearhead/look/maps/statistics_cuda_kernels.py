"""The Triton kernels of statistics_cuda.py; imported only where Triton is installed.

Arguments that end in _b, _h, _n, _e, _i or _j are strides over rows, heads, tokens, features, queries and keys. In the
kernels i are the numbers of the queries of a tile, j of its keys, p = i + offset the positions of the queries among the
keys, s the scores in base 2 and w = 2^(s - lse) the weights.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(
    q, k, i, j, p, b, h,
    n, m, scale,
    lengths, lengths_b, documents, documents_b,
    allow, allow_b, allow_h, allow_i, allow_j,
    q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
    dense, dense_b, dense_h, dense_i, dense_j,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr,
    ALLOW: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr, DENSE: tl.constexpr,
    EXACT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A tile of scores in base 2, -inf where the mask forbids; without MASKED it must forbid nothing."""
    # Products of float32 in full precision, without TF32.
    if EXACT:
        s = tl.dot(q, k, input_precision="ieee") * scale
    else:
        s = tl.dot(q, k) * scale
    inside = (i < n)[:, None] & (j < m)[None, :]
    if SLOPE or TABLE:
        # s_ij += slope_h |d|, and table_h[d], d the distance cut off at both ends of the table
        here = tl.load(q_at + b * q_at_b + i, mask=i < n, other=0)
        there = tl.load(k_at + b * k_at_b + j, mask=j < m, other=0)
        d = (there[None, :] - here[:, None]).to(tl.int32)
        if SLOPE:
            s += tl.load(slope + h * slope_h).to(tl.float32) * LOG2E * tl.abs(d).to(tl.float32)
        if TABLE:
            # Distances beyond the table take its last entries.
            bucket = tl.minimum(tl.maximum(d, -reach), reach) + reach
            s += tl.load(table + h * table_h + bucket).to(tl.float32) * LOG2E
    if DENSE:
        # 64-bit offsets: b h n m entries may be over 2^31.
        at = (
            b * dense_b
            + h * dense_h
            + i[:, None].to(tl.int64) * dense_i
            + j[None, :].to(tl.int64) * dense_j
        )
        s += tl.load(dense + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
    if MASKED:
        # Padding of the last tiles is outside of the call.
        allowed = inside
        if CAUSAL:
            allowed = allowed & (j[None, :] <= p[:, None])
        if WINDOW > 0:
            # |p - j| < WINDOW, as in Mask.
            back = p[:, None] - j[None, :]
            allowed = allowed & (back < WINDOW) & (back > -WINDOW)
        if LENGTHS:
            allowed = allowed & (j < tl.load(lengths + b * lengths_b))[None, :]
        if DOCUMENTS:
            # -1 and -2: beyond the end nothing is of the same document
            own = tl.load(documents + b * documents_b + tl.minimum(p, m - 1), mask=i < n, other=-1)
            theirs = tl.load(documents + b * documents_b + j, mask=j < m, other=-2)
            allowed = allowed & (own[:, None] == theirs[None, :])
        if ALLOW:
            at = (
                b * allow_b
                + h * allow_h
                + i[:, None].to(tl.int64) * allow_i
                + j[None, :].to(tl.int64) * allow_j
            )
            allowed = allowed & (tl.load(allow + at, mask=inside, other=0) != 0)
        s = tl.where(allowed, s, float("-inf"))
    return s


@triton.jit
def _spots(places, i, n, PLACE: tl.constexpr):
    """The rows of a table of places: a tile (tokens, PLACE)."""
    c = tl.arange(0, PLACE)
    return tl.load(places + i[:, None] * PLACE + c[None, :], mask=(i < n)[:, None], other=0.0)


@triton.jit
def _reach(
    block, first, m, b, lengths, lengths_b,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, ALLOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The keys that a block of queries can reach, low to high; up to `whole` no pair is masked."""
    low, high = 0, m
    if CAUSAL:  # up to the position of the block's last query
        high = tl.minimum(high, first + (block + 1) * BM)
    if WINDOW > 0:
        # The first block of keys that a window reaches, aligned to tiles.
        low = tl.maximum(low, first + block * BM - WINDOW + 1) // BN * BN
        high = tl.minimum(high, first + (block + 1) * BM - 1 + WINDOW)
    if LENGTHS:
        high = tl.minimum(high, tl.load(lengths + b * lengths_b).to(tl.int32))
    # A mask that is computed per pair may forbid any of them.
    whole = low
    if WINDOW == 0 and not DOCUMENTS and not ALLOW:
        # The start of the first tile in which the diagonal or the end of the keys may be.
        whole = high // BN * BN
        if CAUSAL:  # before the block's first query
            whole = tl.minimum(whole, (first + block * BM + 1) // BN * BN)
        whole = tl.maximum(whole, low)
    return low, high, whole


@triton.jit
def normalise(
    lse_out, peak_out,
    q, q_b, q_h, q_n, q_e, k, k_b, k_h, k_n, k_e,
    heads, group, n, m, width, scale,
    lengths, lengths_b, offset, offset_b, documents, documents_b,
    allow, allow_b, allow_h, allow_i, allow_j,
    q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
    dense, dense_b, dense_h, dense_i, dense_j,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, OFFSET: tl.constexpr,
    DOCUMENTS: tl.constexpr, ALLOW: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr,
    DENSE: tl.constexpr, EXACT: tl.constexpr,
    PEAK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """For a block of queries over all keys that it can reach: log2 sum 2^s, and the largest weight and its key."""
    # under a causal mask the last block has the most keys: it starts first
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b, h = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64)
    i, e = block * BM + tl.arange(0, BM), tl.arange(0, BE)
    first = 0
    if OFFSET:
        first = tl.load(offset + b * offset_b).to(tl.int32)
    q_tile = tl.load(
        q + b * q_b + h * q_h + i[:, None].to(tl.int64) * q_n + e[None, :] * q_e,
        mask=(i < n)[:, None] & (e < width)[None, :], other=0.0,
    )  # fmt: skip
    k_base = k + b * k_b + (h // group) * k_h + e[:, None] * k_e

    low, high, whole = _reach(
        block, first, m, b, lengths, lengths_b, CAUSAL, WINDOW, LENGTHS, DOCUMENTS, ALLOW, BM, BN
    )

    # Online softmax: `top` is the largest score so far, `total` the sum of 2^(s - top).
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    peak = tl.zeros((BM,), tl.int32)
    # Stage 0: keys that no query of the block is kept from, where no mask is computed; stage 1: the others.
    for stage in tl.static_range(2):
        for start in tl.range(low if stage == 0 else whole, whole if stage == 0 else high, BN):
            j = start + tl.arange(0, BN)
            k_tile = tl.load(
                k_base + j[None, :].to(tl.int64) * k_n,
                mask=(e < width)[:, None] & (j < m)[None, :],
                other=0.0,
            )
            s = _scores(
                q_tile, k_tile, i, j, i + first, b, h, n, m, scale,
                lengths, lengths_b, documents, documents_b, allow, allow_b, allow_h, allow_i, allow_j,
                q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
                dense, dense_b, dense_h, dense_i, dense_j,
                CAUSAL, WINDOW, LENGTHS, DOCUMENTS, ALLOW, SLOPE, TABLE, DENSE, EXACT, stage == 1,
            )  # fmt: skip
            if PEAK:
                tile_top, tile_peak = tl.max(s, axis=1, return_indices=True)
                peak = tl.where(tile_top > top, start + tile_peak, peak)
            else:
                tile_top = tl.max(s, axis=1)
            new = tl.maximum(top, tile_top)
            safe = tl.where(new == float("-inf"), 0.0, new)  # all keys so far are masked
            # what was summed relative to the old maximum becomes relative to the new one
            total = total * tl.exp2(top - safe) + tl.sum(tl.exp2(s - safe[:, None]), axis=1)
            top = new

    at = bh.to(tl.int64) * n + i
    # -inf for a row whose keys are all masked
    tl.store(lse_out + at, top + tl.log2(total), mask=i < n)
    if PEAK:
        # the largest weight is 2^(top - lse) = 1 / total; its bits are stored beside the key
        size = tl.num_programs(1).to(tl.int64) * n
        tl.store(peak_out + at, peak, mask=i < n)
        tl.store(
            peak_out + size + at,
            (1.0 / tl.maximum(total, 1.0)).to(tl.int32, bitcast=True),
            mask=i < n,
        )


@triton.jit
def measure(
    sums, received_out, lse, q_place, k_place, one, one_far, one_far2,
    q, q_b, q_h, q_n, q_e, k, k_b, k_h, k_n, k_e,
    heads, group, n, m, width, scale,
    lengths, lengths_b, offset, offset_b, documents, documents_b,
    allow, allow_b, allow_h, allow_i, allow_j,
    q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
    dense, dense_b, dense_h, dense_i, dense_j,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, OFFSET: tl.constexpr,
    DOCUMENTS: tl.constexpr, ALLOW: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr,
    DENSE: tl.constexpr, EXACT: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, RMS: tl.constexpr, POSITION: tl.constexpr,
    RECEIVED: tl.constexpr, GRID: tl.constexpr, PLACE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """For a block of keys under all queries that can reach it: the weight it receives, and its part of their sums.

    The parts of a query's sums are added in memory in whatever order the blocks end, as integers, whose sum does not
    depend on the order: 1 is stored as `one`, a distance of 1 as `one_far`, a squared distance of 1 as `one_far2`.
    """
    block = tl.program_id(0)  # under a causal mask the first block has the most queries
    bh = tl.program_id(1)
    b, h = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64)
    j, e = block * BN + tl.arange(0, BN), tl.arange(0, BE)
    first = 0
    if OFFSET:
        first = tl.load(offset + b * offset_b).to(tl.int32)
    k_tile = tl.load(
        k + b * k_b + (h // group) * k_h + j[None, :].to(tl.int64) * k_n + e[:, None] * k_e,
        mask=(e < width)[:, None] & (j < m)[None, :], other=0.0,
    )  # fmt: skip
    q_base = q + b * q_b + h * q_h + e[None, :] * q_e

    low, high = 0, n
    if CAUSAL:
        # The first query that reaches this block of keys, aligned to tiles.
        low = tl.maximum(low, block * BN - first) // BM * BM
    if WINDOW > 0:
        high = tl.minimum(high, (block + 1) * BN - 1 + WINDOW - first)
        low = tl.maximum(low, block * BN - WINDOW + 1 - first) // BM * BM
    # From `whole` on no pair of the block is masked; before it the mask must be computed.
    whole = high
    if WINDOW == 0 and not DOCUMENTS and not ALLOW and not LENGTHS:
        # A partial block of keys at the end needs the mask everywhere.
        if (block + 1) * BN <= m:
            whole = low
            if CAUSAL:
                # The first query at or after the block's last key, rounded up to a tile.
                whole = (tl.maximum((block + 1) * BN - 1 - first, 0) + BM - 1) // BM * BM
                whole = tl.minimum(tl.maximum(whole, low), high)

    there_y, there_x = j.to(tl.float32), tl.zeros((BN,), tl.float32)
    if GRID:  # the table has -2 y and -2 x
        there_y = tl.load(k_place + PLACE * j, mask=j < m, other=0.0).to(tl.float32) * -0.5
        there_x = tl.load(k_place + PLACE * j + 1, mask=j < m, other=0.0).to(tl.float32) * -0.5
        there = tl.trans(_spots(k_place, j, m, PLACE))

    received = tl.zeros((BM, BN), tl.float32)  # summed over its queries once, at the end
    # Stage 0: queries that are kept from some keys of the block; stage 1: the others, where no mask is computed.
    size = tl.num_programs(1).to(tl.int64) * n
    for stage in tl.static_range(2):
        for start in tl.range(low if stage == 0 else whole, whole if stage == 0 else high, BM):
            i = start + tl.arange(0, BM)
            q_tile = tl.load(
                q_base + i[:, None].to(tl.int64) * q_n,
                mask=(i < n)[:, None] & (e < width)[None, :],
                other=0.0,
            )
            s = _scores(
                q_tile, k_tile, i, j, i + first, b, h, n, m, scale,
                lengths, lengths_b, documents, documents_b, allow, allow_b, allow_h, allow_i, allow_j,
                q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
                dense, dense_b, dense_h, dense_i, dense_j,
                CAUSAL, WINDOW, LENGTHS, DOCUMENTS, ALLOW, SLOPE, TABLE, DENSE, EXACT, stage == 0,
            )  # fmt: skip
            at = bh.to(tl.int64) * n + i
            norm = tl.load(lse + at, mask=i < n, other=float("inf"))
            # a fully masked row adds nothing
            norm = tl.where(norm == float("-inf"), float("inf"), norm)
            log = s - norm[:, None]
            w = tl.exp2(log)
            if RECEIVED:
                received += w
            if ENTROPY:
                if stage == 0 or DENSE:  # 0 log 0 is 0
                    log = tl.where(w > 0, log, 0.0)
                # Fixed-point numbers: integer sums do not depend on the order of their terms.
                part = (tl.sum(w * log, axis=1) * one).to(tl.int64)
                tl.atomic_add(sums + at, part, mask=i < n, sem="relaxed")
            if DISTANCE or RMS or POSITION:
                if POSITION:
                    part = (tl.sum(w * there_y[None, :], axis=1) * one_far).to(tl.int64)
                    tl.atomic_add(sums + 3 * size + at, part, mask=i < n, sem="relaxed")
                    part = (tl.sum(w * there_x[None, :], axis=1) * one_far).to(tl.int64)
                    tl.atomic_add(sums + 4 * size + at, part, mask=i < n, sem="relaxed")
                if DISTANCE or RMS:
                    if GRID:
                        # d^2 = row of queries . row of keys, exactly: see _tables.
                        square = tl.dot(_spots(q_place, i, n, PLACE), there)
                        d = tl.sqrt(square)
                    else:
                        dy = (i + first).to(tl.float32)[:, None] - there_y[None, :]
                        square = dy * dy
                        d = dy if CAUSAL else tl.abs(dy)  # causal: no key is later
                    if DISTANCE:
                        part = (tl.sum(w * d, axis=1) * one_far).to(tl.int64)
                        tl.atomic_add(sums + 1 * size + at, part, mask=i < n, sem="relaxed")
                    if RMS:
                        part = (tl.sum(w * square, axis=1) * one_far2).to(tl.int64)
                        tl.atomic_add(sums + 2 * size + at, part, mask=i < n, sem="relaxed")
    if RECEIVED:
        tl.store(received_out + bh.to(tl.int64) * m + j, tl.sum(received, axis=0), mask=j < m)


@triton.jit
def measure_queries(
    sums, lse, q_place, k_place,
    q, q_b, q_h, q_n, q_e, k, k_b, k_h, k_n, k_e,
    heads, group, n, m, width, scale,
    lengths, lengths_b, offset, offset_b, documents, documents_b,
    allow, allow_b, allow_h, allow_i, allow_j,
    q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
    dense, dense_b, dense_h, dense_i, dense_j,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, OFFSET: tl.constexpr,
    DOCUMENTS: tl.constexpr, ALLOW: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr,
    DENSE: tl.constexpr, EXACT: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, RMS: tl.constexpr, POSITION: tl.constexpr,
    GRID: tl.constexpr, SPECIAL: tl.constexpr, PLACE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """For a block of queries over all keys that it can reach: their sums, which stay in registers until the end.

    The first SPECIAL keys have no place: their rows of the table of places are 0, and so is their part of the sums over
    places. The weight on the other keys is summed too.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b, h = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64)
    i, e = block * BM + tl.arange(0, BM), tl.arange(0, BE)
    first = 0
    if OFFSET:
        first = tl.load(offset + b * offset_b).to(tl.int32)
    q_tile = tl.load(
        q + b * q_b + h * q_h + i[:, None].to(tl.int64) * q_n + e[None, :] * q_e,
        mask=(i < n)[:, None] & (e < width)[None, :], other=0.0,
    )  # fmt: skip
    k_base = k + b * k_b + (h // group) * k_h + e[:, None] * k_e
    low, high, whole = _reach(
        block, first, m, b, lengths, lengths_b, CAUSAL, WINDOW, LENGTHS, DOCUMENTS, ALLOW, BM, BN
    )

    at = bh.to(tl.int64) * n + i
    norm = tl.load(lse + at, mask=i < n, other=float("inf"))
    norm = tl.where(norm == float("-inf"), float("inf"), norm)  # a fully masked row adds nothing
    if GRID:
        here = _spots(q_place, i, n, PLACE)
    # The sums of each query: w log2 w, w d, w d^2, w y and w x, and the weight on keys that have a place.
    entropy = tl.zeros((BM,), tl.float32)
    far = tl.zeros((BM,), tl.float32)
    far2 = tl.zeros((BM,), tl.float32)
    mean_y = tl.zeros((BM,), tl.float32)
    mean_x = tl.zeros((BM,), tl.float32)
    placed = tl.zeros((BM,), tl.float32)
    # Stage 0: keys that no query of the block is kept from, where no mask is computed; stage 1: the others.
    for stage in tl.static_range(2):
        for start in tl.range(low if stage == 0 else whole, whole if stage == 0 else high, BN):
            j = start + tl.arange(0, BN)
            k_tile = tl.load(
                k_base + j[None, :].to(tl.int64) * k_n,
                mask=(e < width)[:, None] & (j < m)[None, :],
                other=0.0,
            )
            s = _scores(
                q_tile, k_tile, i, j, i + first, b, h, n, m, scale,
                lengths, lengths_b, documents, documents_b, allow, allow_b, allow_h, allow_i, allow_j,
                q_at, q_at_b, k_at, k_at_b, slope, slope_h, table, table_h, reach,
                dense, dense_b, dense_h, dense_i, dense_j,
                CAUSAL, WINDOW, LENGTHS, DOCUMENTS, ALLOW, SLOPE, TABLE, DENSE, EXACT, stage == 1,
            )  # fmt: skip
            log = s - norm[:, None]
            w = tl.exp2(log)
            if ENTROPY:
                if stage == 1 or DENSE:  # 0 log 0 is 0
                    log = tl.where(w > 0, log, 0.0)
                entropy += tl.sum(w * log, axis=1)
            if DISTANCE or RMS or POSITION:
                if SPECIAL > 0:
                    placed += tl.sum(w * (j >= SPECIAL).to(tl.float32)[None, :], axis=1)
                if POSITION:
                    there_y, there_x = j.to(tl.float32), tl.zeros((BN,), tl.float32)
                    if GRID:
                        # the table has -2 y and -2 x
                        y = tl.load(k_place + PLACE * j, mask=j < m, other=0.0)
                        x = tl.load(k_place + PLACE * j + 1, mask=j < m, other=0.0)
                        there_y, there_x = y.to(tl.float32) * -0.5, x.to(tl.float32) * -0.5
                    mean_y += tl.sum(w * there_y[None, :], axis=1)
                    mean_x += tl.sum(w * there_x[None, :], axis=1)
                if DISTANCE or RMS:
                    if GRID:
                        # Again d^2 by the tables of places.
                        square = tl.dot(here, tl.trans(_spots(k_place, j, m, PLACE)))
                        d = tl.sqrt(square)
                    else:
                        dy = (i + first).to(tl.float32)[:, None] - j.to(tl.float32)[None, :]
                        square = dy * dy
                        d = dy if CAUSAL else tl.abs(dy)
                    if DISTANCE:
                        far += tl.sum(w * d, axis=1)
                    if RMS:
                        far2 += tl.sum(w * square, axis=1)
    size = tl.num_programs(1).to(tl.int64) * n
    if SPECIAL > 0:  # the weight on the other keys is scaled to sum to 1
        # A row whose weight is all on special keys has the sum 0, which stays.
        share = tl.where(placed > 0, placed, 1.0)
        far, far2, mean_y, mean_x = far / share, far2 / share, mean_y / share, mean_x / share
    tl.store(sums + at, entropy, mask=i < n)
    tl.store(sums + size + at, far, mask=i < n)
    tl.store(sums + 2 * size + at, far2, mask=i < n)
    tl.store(sums + 3 * size + at, mean_y, mask=i < n)
    tl.store(sums + 4 * size + at, mean_x, mask=i < n)
