// Attention of many queries over a listing's live subblocks, in tiles of 8 by 8.
//
// A threadgroup takes a tile of lines of one key head, eight or sixteen a simdgroup, and a program's
// share of the rows. Cells come into threadgroup memory a subblock at a time, dead ones as zeros, by
// way of registers that ask for the next while these are taken; what a simdgroup adds up stays in
// its lanes. Source of the habits: the matrix kernels of MLX, and FlashAttention-2.
#pragma once
#include "attend_tiles.h"

// Takes the cells in threadgroup memory into the running softmax of a simdgroup's lines, eight of
// them a group.
template <typename T, int D, int GROUPS>
inline void prefill_take(
    thread Running<T, tile_steps(D)>* now,
    const threadgroup T* near_keys,
    const threadgroup T* near_values,
    const threadgroup float* added,
    const threadgroup int64_t* ages,
    bool in_part,
    const thread int64_t (&mine)[GROUPS][2],
    float factor,
    uint lane) {
    constexpr int pitch = tile_pitch(D, sizeof(T));
    UNROLL for (int first = 0; first < tile_cells(sizeof(T)); first += TURN) {
        simdgroup_matrix<float, 8, 8> scores[GROUPS][2];
        UNROLL for (int g = 0; g < GROUPS; ++g) {
            UNROLL for (int i = 0; i < 2; ++i) scores[g][i] = matrix_of(0.0f, 0.0f);
        }
        UNROLL for (int step = 0; step < tile_steps(D); step += 2) {
            Keys<T> quad = load_quad<Keys<T>, T>(near_keys + first * pitch + step * 8, pitch, lane);
            UNROLL for (int g = 0; g < GROUPS; ++g) score(scores[g], quad, now[g].queries + step);
        }
        Shares<T> shares[GROUPS];
        UNROLL for (int g = 0; g < GROUPS; ++g) {
            Sight sight = sight_of(added + first, ages + first, in_part, mine[g], lane);
            shares[g] = weigh(now[g], scores[g], sight, factor, lane);
        }
        UNROLL for (int step = 0; step < tile_steps(D); step += 2) {
            Values<T> quad =
                load_quad<Values<T>, T>(near_values + first * pitch + step * 8, pitch, lane);
            UNROLL for (int g = 0; g < GROUPS; ++g) mix(now[g].mixed + step, shares[g], quad);
        }
    }
}

// Writes what eight lines found.
template <typename T, typename O, int D>
inline void prefill_write(
    thread Running<T, tile_steps(D)>& now,
    device O* out,
    device float* sums,
    Program of,
    int first_line,
    int last_line,
    Offset before,  // lines of streams and programs before
    uint lane) {
    const float totals[2] = {column_sum(now.total[0]), column_sum(now.total[1])};
    float share[2];
    bool shown[2];
    Offset target[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        float total = totals[e];
        float peak = now.peak[e];
        if (!LINES_ACROSS) {
            total = turned_to_row(totals[0], totals[1], lane);
            peak = turned_to_row(now.peak[0], now.peak[1], lane);
        }
        const int line = first_line + mixed_line(e, lane);
        target[e] = before + line_place(of, min(line, last_line));
        const bool seen = sees(total);
        share[e] = seen ? 1.0f / total : 0.0f;
        // What saw nothing has no part in a merge.
        shown[e] = line <= last_line && (seen || !of.shared);
        if (line <= last_line && mixed_column(e, lane) == 0) {
            sums[target[e]] = seen ? peak + log2(total) : no_sum();
        }
    }
    UNROLL for (int step = 0; step < D / 8; ++step) {
        UNROLL for (int e = 0; e < 2; ++e) {
            if (!shown[e]) continue;
            out[target[e] * D + step * 8 + mixed_column(e, lane)] =
                O(now.mixed[step].thread_elements()[e] * share[e]);
        }
    }
}

// Inputs, outputs and grid as of `decode`; `near_keys` and `near_values` hold a piece's cells,
// `added` and `ages` a number a cell.
template <typename T, typename O, int D, int GROUPS, int SIMDS>
inline void prefill(
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
    threadgroup uint4* key_words,
    threadgroup uint4* value_words,
    threadgroup float* added,
    threadgroup int64_t* ages,
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    constexpr int cells = tile_cells(sizeof(T));
    threadgroup T* near_keys = reinterpret_cast<threadgroup T*>(key_words);
    threadgroup T* near_values = reinterpret_cast<threadgroup T*>(value_words);
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    keys += head_offset(of, D);
    values += head_offset(of, D);
    const uint thread_index = simdgroup * 32u + lane;
    // The last tile sees most: it starts first.
    const int first_line = int(groups.x - 1u - group.x) * (SIMDS * GROUPS * LINES);
    const int last_line = min(first_line + SIMDS * GROUPS * LINES, sizes.lines()) - 1;
    const int my_line = first_line + int(simdgroup) * GROUPS * LINES;
    const bool busy = my_line <= last_line;
    const int64_t oldest = query_order[first_line / sizes.group];
    const int64_t newest = query_order[last_line / sizes.group];
    int64_t mine[GROUPS][2];
    Running<T, tile_steps(D)> now[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        begin(now[g]);
        UNROLL for (int e = 0; e < 2; ++e) {
            const int line = my_line + g * LINES + lane_column(lane) + e;
            mine[g][e] = query_order[min(line, last_line) / sizes.group];
        }
    }
    for (int index = of.first_segment; index <= of.last_segment; ++index) {
        const Segment segment = segment_at(segments, index);
        if (segment.begin >= segment.end) continue;
        const Offset table = of.lines_before(segment.table);
        UNROLL for (int g = 0; g < GROUPS; ++g) {
            const int line = my_line + g * LINES + lane_row(lane);
            const int place = line_place(of, min(line, last_line));
            load_lines<T, D>(
                queries + (table + place) * D, line <= last_line, lane, now[g].queries);
        }
        const int end = segment.end * (PAGE / cells);
        int unit = segment.begin * (PAGE / cells);
        bool held = false;
        bool held_in_part = false;
        while (true) {
            Piece piece = {0u, 0, 0u};
            bool in_part = false;
            while (piece.alive == 0u && unit < end) {
                const int row = unit / (PAGE / cells);
                if (of.checked && row >= segment.whole) {
                    // Bounds ascend: what follows is out of sight too.
                    if (bounds[Offset(row) * 2] > newest) break;
                    in_part = bounds[Offset(row) * 2 + 1] > oldest;
                }
                piece = piece_of(row_at(rows, row), unit % (PAGE / cells) * cells, cells);
                ++unit;
            }
            // What comes next is asked for before what is here is taken.
            Brought<T, D, SIMDS * 32> some_keys;
            Brought<T, D, SIMDS * 32> some_values;
            const Offset at = subblock_offset(piece.subblock, sizes, D) + piece.first * D;
            some_keys.ask(keys + at, piece.alive, thread_index);
            some_values.ask(values + at, piece.alive, thread_index);
            if (held && busy) {
                prefill_take<T, D, GROUPS>(
                    now, near_keys, near_values, added, ages, held_in_part, mine, scale * LOG2_E,
                    lane);
            }
            if (piece.alive == 0u) break;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            some_keys.put(near_keys, thread_index);
            some_values.put(near_values, thread_index);
            stage_sight(
                piece, cells, order, bias, sizes.biased, in_part, added, ages, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            held = true;
            held_in_part = in_part;
        }
    }
    if (!busy) return;
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        prefill_write<T, O, D>(
            now[g], out, sums, of, my_line + g * LINES, last_line,
            of.lines_before(int(group.z)), lane);
    }
}
