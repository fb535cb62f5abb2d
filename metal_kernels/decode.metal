// Attention of few queries over a listing's live subblocks.
//
// A threadgroup takes a tile of lines (a query and a head each) of one key head, and a program's
// share of the rows; its simdgroups walk the subblocks of these rows in turn and read each key once
// for all lines. Sources of the habits: the vector kernels of MLX and llama.cpp, and FlashDecoding.
#pragma once
#include "decode_cells.h"

// Floats of threadgroup memory: queries and weights, and later what simdgroups found.
constexpr int decode_floats(int head_dim, int lines, int simdgroups) {
    const int reading = lines * head_dim + simdgroups * lines * SUBBLOCK;
    const int joining = simdgroups * (2 * lines + head_dim);
    return reading > joining ? reading : joining;
}

// Joins what the simdgroups found and writes it.
template <typename O, int D, int LINES, int SIMDS>
inline void decode_join(
    thread Running<LINES>& now,
    device O* out,
    device float* sums,
    Program of,
    int first_line,
    Offset before,  // lines of streams and programs before
    threadgroup float* pool,
    uint simdgroup,
    uint lane) {
    threadgroup float* peaks = pool;
    threadgroup float* totals = pool + SIMDS * LINES;
    threadgroup float* found = pool + 2 * SIMDS * LINES;  // [SIMDS, D]
    constexpr int parts = D > 64 ? 1 : 2;
    const int column = int(lane % (32u / parts)) * 4;
    // The other half's columns are the same, of other cells.
    const bool writes = lane < 32u / parts && column < D;
    UNROLL for (int line = 0; line < LINES; ++line) {
        const float total = simd_sum(now.total[line]);
        if (lane == 0) {
            peaks[simdgroup * LINES + line] = now.peak[line];
            totals[simdgroup * LINES + line] = total;
        }
        if (parts == 2) {
            UNROLL for (int c = 0; c < 4; ++c) {
                now.mixed[line][c] += simd_shuffle_xor(now.mixed[line][c], ushort(16));
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int line = 0; line < LINES; ++line) {
        float top = UNSEEN;
        for (int s = 0; s < SIMDS; ++s) top = max(top, peaks[s * LINES + line]);
        float total = 0.0f;
        for (int s = 0; s < SIMDS; ++s) {
            total += totals[s * LINES + line] * fast::exp2(peaks[s * LINES + line] - top);
        }
        if (writes) {
            const float part = fast::exp2(now.peak[line] - top);
            UNROLL for (int c = 0; c < 4; ++c) {
                found[int(simdgroup) * D + column + c] = now.mixed[line][c] * part;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool seen = sees(total);
        const int index = first_line + line;
        if (index < of.sizes.lines()) {
            const Offset place = before + line_place(of, index);
            // What saw nothing has no part in a merge.
            if (seen || !of.shared) {
                const float share = seen ? 1.0f / total : 0.0f;
                for (int c = int(simdgroup * 32u + lane); c < D; c += SIMDS * 32) {
                    float mixed = 0.0f;
                    for (int s = 0; s < SIMDS; ++s) mixed += found[s * D + c];
                    out[place * D + c] = O(mixed * share);
                }
            }
            if (simdgroup == 0 && lane == 0) sums[place] = seen ? top + log2(total) : no_sum();
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Queries `[tables, streams, T, q_heads, D]`, a layer `[streams, pages, kv_heads, PAGE, D]`, a
// listing, `order` and `bias` a cell, `query_order` a query. Gives `[streams, T, q_heads, D]` and
// the log-sum-exps to base 2 `[streams, T, q_heads]`, where programs share the rows one for each.
// The grid: tiles of lines, key heads of all streams, programs.
template <typename T, typename O, int D, int LINES, int SIMDS>
inline void decode(
    const device T* queries,
    const device T* keys,
    const device T* values,
    const device int64_t* rows,
    const device int64_t* bounds,
    const device int* segments,
    const device int64_t* order,
    const device float* bias,
    const device int64_t* query_order,
    const constant int* numbers,
    float scale,
    device O* out,
    device float* sums,
    threadgroup float4* memory,
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    const int first_line = int(group.x) * LINES;
    keys += head_offset(of, D);
    values += head_offset(of, D);
    threadgroup float* pool = reinterpret_cast<threadgroup float*>(memory);
    threadgroup float* turned = pool;
    threadgroup float* weights = pool + LINES * D + int(simdgroup) * LINES * SUBBLOCK;
    const int cell = int(lane & 3u) * 8 + int(lane >> 2);
    int64_t oldest = 0;
    int64_t newest = 0;
    if (of.checked) {
        const int last_line = min(first_line + LINES, sizes.lines()) - 1;
        oldest = query_order[first_line / sizes.group];
        newest = query_order[last_line / sizes.group];
    }
    Running<LINES> now;
    UNROLL for (int line = 0; line < LINES; ++line) {
        now.peak[line] = UNSEEN;
        now.total[line] = 0.0f;
        UNROLL for (int c = 0; c < 4; ++c) now.mixed[line][c] = 0.0f;
    }
    for (int index = of.first_segment; index <= of.last_segment; ++index) {
        const Segment segment = segment_at(segments, index);
        if (segment.begin >= segment.end) continue;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const Offset table = of.lines_before(segment.table);
        for (int i = int(simdgroup * 32u + lane); i < LINES * D; i += SIMDS * 32) {
            const int line = first_line + i / D;
            float q = 0.0f;
            if (line < sizes.lines()) {
                q = float(queries[(table + line_place(of, line)) * D + i % D]);
            }
            turned[i] = q * (scale * LOG2_E);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const int end = segment.end * 2;
        int unit = segment.begin * 2 + int(simdgroup);
        // Where the next subblock lies is read while this one is.
        Row next = row_at(rows, min(unit >> 1, segment.end - 1));
        for (; unit < end; unit += SIMDS) {
            const Row row = next;
            next = row_at(rows, min((unit + SIMDS) >> 1, segment.end - 1));
            const uint alive = row.alive(unit & 1);
            if (alive == 0u) continue;
            bool in_part = false;
            if (of.checked && (unit >> 1) >= segment.whole) {
                // Bounds ascend: what follows is out of sight too.
                if (bounds[Offset(unit >> 1) * 2] > newest) break;
                in_part = bounds[Offset(unit >> 1) * 2 + 1] > oldest;
            }
            const uint subblock = row.subblock(unit & 1);
            const Offset at = subblock_offset(subblock, sizes, D);
            float scores[LINES];
            decode_scores<T, D, LINES>(keys + at, alive, turned, scores, lane);
            const bool there = (alive >> cell) & 1u;
            const Offset known = Offset(subblock) * SUBBLOCK + cell;
            float added = 0.0f;
            if (sizes.biased && there) added = bias[known] * LOG2_E;
            int64_t age = 0;
            if (in_part && there) age = order[known];
            UNROLL for (int line = 0; line < LINES; ++line) {
                bool seen = there;
                if (in_part) {
                    const int at_most = min(first_line + line, sizes.lines() - 1);
                    seen = seen && age <= query_order[at_most / sizes.group];
                }
                const float score = seen ? scores[line] + added : HIDDEN;
                const float top = max(now.peak[line], simd_max(score));
                const float weight = fast::exp2(score - top);
                const float shrink = fast::exp2(now.peak[line] - top);
                now.peak[line] = top;
                now.total[line] = now.total[line] * shrink + weight;
                UNROLL for (int c = 0; c < 4; ++c) now.mixed[line][c] *= shrink;
                weights[line * SUBBLOCK + cell] = weight;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            decode_values<T, D, LINES>(values + at, alive, weights, now, lane);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    decode_join<O, D, LINES, SIMDS>(
        now, out, sums, of, first_line, of.lines_before(int(group.z)), pool, simdgroup, lane);
}
