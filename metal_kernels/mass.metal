// The attention that each live cell got, found again from the log-sum-exps of the queries.
//
// A threadgroup takes a part of a program's rows for one key head. Keys of a piece lie in
// threadgroup memory while all lines (a query and a head each) pass by, eight a simdgroup. So what
// a cell gets of a key head is written once, by one threadgroup.
#pragma once
#include "attend_tiles.h"

// Above every sum: of a query that gives nothing.
constant constexpr float NOTHING = 1e30f;

// Dot products of eight lines and sixteen cells in threadgroup memory.
template <typename T, int D>
inline void dot_cells(
    thread Factor<T>* queries,
    const threadgroup T* keys,
    uint lane,
    thread simdgroup_matrix<float, 8, 8>* scores) {
    scores[0] = matrix_of(0.0f, 0.0f);
    scores[1] = matrix_of(0.0f, 0.0f);
    UNROLL for (int step = 0; step < tile_steps(D); step += 2) {
        Keys<T> quad = load_quad<Keys<T>, T>(keys + step * 8, tile_pitch(D, sizeof(T)), lane);
        score(scores, quad, queries + step);
    }
}

// What a simdgroup's lines give to the lane's cells, two of each sixteen, added up over the lines.
template <typename T, int D>
inline void mass_take(
    thread Factor<T>* queries,
    const threadgroup T* keys,
    const threadgroup float* added,
    const threadgroup int64_t* ages,
    bool in_part,
    const thread int64_t* mine,
    float factor,
    const thread float* sums,
    uint lane,
    thread float* given) {
    UNROLL for (int first = 0; first < tile_cells(sizeof(T)); first += TURN) {
        simdgroup_matrix<float, 8, 8> scores[2];
        dot_cells<T, D>(queries, keys + first * tile_pitch(D, sizeof(T)), lane, scores);
        const Sight sight = sight_of(added + first, ages + first, in_part, mine, lane);
        UNROLL for (int i = 0; i < 2; ++i) {
            UNROLL for (int e = 0; e < 2; ++e) {
                const bool seen = (sight.seen >> (e * 2 + i)) & 1u;
                const float score = scores[i].thread_elements()[e] * factor + sight.added[i];
                given[first / 8 + i] += seen ? fast::exp2(score - sums[e]) : 0.0f;
            }
        }
    }
}

// Queries, keys and what tells of them as of `decode`; `sums` as it gave them, of -inf for a query
// that is to give nothing. Gives `[streams, kv_heads, rows, PAGE]`, only where a live cell stands.
// The grid: parts of a program's rows, key heads of all streams, programs.
template <typename T, int D, int SIMDS>
inline void mass(
    const device T* queries,
    const device T* keys,
    const device int64_t* rows,
    const device int64_t* bounds,
    const device int* segments,
    const device int64_t* order,
    const device float* bias,
    const device int64_t* query_order,
    const device float* sums,
    const constant int* numbers,
    int listed_rows,
    float scale,
    device float* given,
    threadgroup uint4* key_words,
    threadgroup float* added,
    threadgroup int64_t* ages,
    threadgroup float* joined,  // [SIMDS, SUBBLOCK]
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    constexpr int cells = tile_cells(sizeof(T));
    threadgroup T* near_keys = reinterpret_cast<threadgroup T*>(key_words);
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    keys += head_offset(of, D);
    sums += of.lines_before(0);
    given += Offset(group.y) * listed_rows * PAGE;
    const uint thread_index = simdgroup * 32u + lane;
    for (int index = of.first_segment; index <= of.last_segment; ++index) {
        const Segment segment = segment_at(segments, index);
        const device T* turned =
            queries + of.lines_before(segment.table) * D;
        for (int row = segment.begin + int(group.x); row < segment.end; row += int(groups.x)) {
            const bool in_part = of.checked && row >= segment.whole;
            const Row two = row_at(rows, row);
            for (int next = 0; next < PAGE; next += cells) {
                const Piece piece = piece_of(two, next, cells);
                if (piece.alive == 0u) continue;
                const Offset at = subblock_offset(piece.subblock, sizes, D) + piece.first * D;
                Brought<T, D, SIMDS * 32> some_keys;
                some_keys.ask(keys + at, piece.alive, thread_index);
                stage_sight(
                    piece, cells, order, bias, sizes.biased, in_part, added, ages, thread_index);
                some_keys.put(near_keys, thread_index);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                float taken[cells / 8];
                UNROLL for (int i = 0; i < cells / 8; ++i) taken[i] = 0.0f;
                const int last = sizes.lines() - 1;
                for (int first = int(simdgroup) * LINES; first <= last; first += SIMDS * LINES) {
                    const int64_t newest = query_order[min(first + LINES - 1, last) / sizes.group];
                    if (in_part && bounds[Offset(row) * 2] > newest) continue;
                    const int line = min(first + lane_row(lane), last);
                    Factor<T> eight[tile_steps(D)];
                    load_lines<T, D>(
                        turned + Offset(line_place(of, line)) * D, first + lane_row(lane) <= last,
                        lane, eight);
                    int64_t mine[2];
                    float whole[2];
                    UNROLL for (int e = 0; e < 2; ++e) {
                        const int own = first + lane_column(lane) + e;
                        mine[e] = query_order[min(own, last) / sizes.group];
                        const float sum = sums[line_place(of, min(own, last))];
                        whole[e] = own <= last && sum > UNSEEN ? sum : NOTHING;
                    }
                    mass_take<T, D>(
                        eight, near_keys, added, ages, in_part, mine, scale * LOG2_E, whole, lane,
                        taken);
                }
                // Lanes of the same cells, then simdgroups.
                UNROLL for (int i = 0; i < cells / 8; ++i) {
                    taken[i] += simd_shuffle_xor(taken[i], ushort(1));
                    taken[i] += simd_shuffle_xor(taken[i], ushort(8));
                    if (lane_column(lane) == 0) {
                        joined[int(simdgroup) * SUBBLOCK + i * 8 + lane_row(lane)] = taken[i];
                    }
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (thread_index < uint(cells) && ((piece.alive >> thread_index) & 1u)) {
                    float sum = 0.0f;
                    for (int s = 0; s < SIMDS; ++s) sum += joined[s * SUBBLOCK + thread_index];
                    given[Offset(row) * PAGE + next + thread_index] = sum;
                }
            }
        }
    }
}
