// Attention of few queries over a listing's live subblocks.
//
// A threadgroup takes eight lines (a query and a head each) of one key head, and a program's share
// of the rows; its simdgroups take sixteen cells of these rows in turn and read each key once for
// all lines. Sources of the habits: the vector kernels of MLX and llama.cpp, and FlashDecoding.
#pragma once
#include "decode_cells.h"

// Columns that are joined at a time, and numbers from a line to the next there.
constexpr int joined_columns(int head_dim) { return head_dim > 32 ? 64 : 32; }
constexpr int joined_pitch(int head_dim) { return joined_columns(head_dim) + 1; }

// Floats of threadgroup memory: what simdgroups found.
constexpr int decode_floats(int head_dim, int simdgroups) {
    return LINES * (simdgroups * (2 + joined_pitch(head_dim)) + 1);
}

// Joins what the simdgroups found and writes it.
template <typename T, typename O, int D, int SIMDS>
inline void decode_join(
    thread Running<T, wide_steps(D)>& now,
    device O* out,
    device float* sums,
    Program of,
    int first_line,
    Offset before,  // lines of streams and programs before
    threadgroup float* pool,
    uint simdgroup,
    uint lane) {
    constexpr int columns = joined_columns(D);
    constexpr int pitch = joined_pitch(D);
    threadgroup float* peaks = pool;
    threadgroup float* totals = pool + SIMDS * LINES;
    threadgroup float* whole = pool + 2 * SIMDS * LINES;
    threadgroup float* found = pool + (2 * SIMDS + 1) * LINES;  // [SIMDS, LINES, pitch]
    UNROLL for (int e = 0; e < 2; ++e) {
        const float total = column_sum(now.total[e]);
        if (lane_row(lane) == 0) {
            const int line = lane_column(lane) + e;
            peaks[int(simdgroup) * LINES + line] = now.peak[e];
            totals[int(simdgroup) * LINES + line] = total;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float share[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        const int line = mixed_line(e, lane);
        float top = UNSEEN;
        for (int s = 0; s < SIMDS; ++s) top = max(top, peaks[s * LINES + line]);
        float total = 0.0f;
        for (int s = 0; s < SIMDS; ++s) {
            total += totals[s * LINES + line] * fast::exp2(peaks[s * LINES + line] - top);
        }
        const float part = fast::exp2(peaks[int(simdgroup) * LINES + line] - top);
        share[e] = sees(total) ? part / total : 0.0f;
        // Of all lanes, one a line: the first simdgroup's first column, or row.
        if (simdgroup == 0 && mixed_column(e, lane) == 0) {
            whole[line] = total;
            if (first_line + line < of.sizes.lines()) {
                sums[before + line_place(of, first_line + line)] =
                    sees(total) ? top + log2(total) : no_sum();
            }
        }
    }
    UNROLL for (int first = 0; first < D; first += columns) {
        UNROLL for (int step = first / 8; step < (first + columns) / 8; ++step) {
            if (step / 4 * 32 >= D) continue;
            UNROLL for (int e = 0; e < 2; ++e) {
                const int place = int(simdgroup) * LINES + mixed_line(e, lane);
                found[place * pitch + spread_column(step, mixed_column(e, lane)) - first] =
                    now.mixed[step].thread_elements()[e] * share[e];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ROLLED for (int i = int(simdgroup * 32u + lane); i < LINES * columns; i += SIMDS * 32) {
            const int line = i / columns;
            const int column = i % columns;
            if (first_line + line >= of.sizes.lines() || first + column >= D) continue;
            // What saw nothing has no part in a merge.
            if (of.shared && !sees(whole[line])) continue;
            float mixed = 0.0f;
            UNROLL for (int s = 0; s < SIMDS; ++s) {
                mixed += found[(s * LINES + line) * pitch + column];
            }
            out[(before + line_place(of, first_line + line)) * D + first + column] = O(mixed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Which of sixteen cells the lane's lines see, and what is added to their scores.
inline Sight sight_of(
    uint alive,
    Offset known,  // the first cell
    bool in_part,
    const device int64_t* order,
    const device float* bias,
    const device int64_t* query_order,
    Sizes sizes,
    int first_line,
    uint lane) {
    Sight sight = {0u, {0.0f, 0.0f}};
    UNROLL for (int i = 0; i < 2; ++i) {
        const int cell = i * 8 + lane_row(lane);
        if (((alive >> cell) & 1u) == 0u) continue;
        sight.seen |= 5u << i;
        if (sizes.biased) sight.added[i] = bias[known + cell] * LOG2_E;
    }
    if (!in_part) return sight;
    ROLLED for (int e = 0; e < 2; ++e) {
        const int line = min(first_line + lane_column(lane) + e, sizes.lines() - 1);
        const int64_t mine = query_order[line / sizes.group];
        UNROLL for (int i = 0; i < 2; ++i) {
            const uint bit = 1u << (e * 2 + i);
            if (!(sight.seen & bit)) continue;
            if (order[known + i * 8 + lane_row(lane)] > mine) sight.seen ^= bit;
        }
    }
    return sight;
}

// Queries `[tables, streams, T, q_heads, D]`, a layer `[streams, pages, kv_heads, PAGE, D]`, a
// listing, `order` and `bias` a cell, `query_order` a query. Gives `[streams, T, q_heads, D]` and
// the log-sum-exps to base 2 `[streams, T, q_heads]`, where programs share the rows one for each.
// The grid: tiles of lines, key heads of all streams, programs.
template <typename T, typename O, int D, int SIMDS>
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
    const int last_line = min(first_line + LINES, sizes.lines()) - 1;
    const int line = first_line + lane_row(lane);
    const int place = line_place(of, min(line, last_line));
    keys += head_offset(of, D);
    values += head_offset(of, D);
    int64_t oldest = 0;
    int64_t newest = 0;
    if (of.checked) {
        oldest = query_order[first_line / sizes.group];
        newest = query_order[last_line / sizes.group];
    }
    Running<T, wide_steps(D)> now;
    begin(now);
    for (int index = of.first_segment; index <= of.last_segment; ++index) {
        const Segment segment = segment_at(segments, index);
        if (segment.begin >= segment.end) continue;
        const Offset table = of.lines_before(segment.table);
        read_queries<T, D>(now, queries + (table + place) * D, line <= last_line, lane);
        // Simdgroups take sixteen cells of a row each, so that a single row keeps four of them busy.
        constexpr int turns = PAGE / TURN;
        const int end = segment.end * turns;
        const int last_row = segment.end - 1;
        int unit = segment.begin * turns + int(simdgroup);
        // Where the next cells lie is read while these are.
        Row next = row_at(rows, min(unit / turns, last_row));
        for (; unit < end; unit += SIMDS) {
            const int row = unit / turns;
            const Piece piece = piece_of(next, unit % turns * TURN, TURN);
            next = row_at(rows, min((unit + SIMDS) / turns, last_row));
            if (piece.alive == 0u) continue;
            bool in_part = false;
            if (of.checked && row >= segment.whole) {
                // Bounds ascend: what follows is out of sight too.
                if (bounds[Offset(row) * 2] > newest) break;
                in_part = bounds[Offset(row) * 2 + 1] > oldest;
            }
            const Offset at = subblock_offset(piece.subblock, sizes, D) + piece.first * D;
            const Offset known = Offset(piece.subblock) * SUBBLOCK + piece.first;
            Sight sight = sight_of(
                piece.alive, known, in_part, order, bias, query_order, sizes, first_line, lane);
            decode_take<T, D>(
                now, keys + at, values + at, piece.alive, sight, scale * LOG2_E, lane);
        }
    }
    decode_join<T, O, D, SIMDS>(
        now, out, sums, of, first_line, of.lines_before(int(group.z)),
        reinterpret_cast<threadgroup float*>(memory), simdgroup, lane);
}
