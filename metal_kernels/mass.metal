// The attention that each live cell got, found again from the log-sum-exps of the queries.
//
// A threadgroup takes a part of a program's rows for one key head. Keys of a piece lie in
// threadgroup memory while all lines (a query and a head each) pass by, eight a simdgroup. So what
// a cell gets of a key head is written once, by one threadgroup.
#pragma once
#include "attend_tiles.h"

// Above every sum: of a query that gives nothing.
constant constexpr float NOTHING = 1e30f;

// What a simdgroup's lines give to two neighbours of each eight cells, added up over the lines.
template <typename T, int D, int BLOCKS>
inline void mass_take(
    thread simdgroup_matrix<T, 8, 8>* queries,
    const threadgroup T* keys,
    const threadgroup float* added,
    const threadgroup int64_t* ages,
    bool in_part,
    int64_t mine,
    float factor,
    float sum,
    int column,
    thread float* given) {
    simdgroup_matrix<float, 8, 8> scores[BLOCKS];
    dot_cells<T, D, BLOCKS>(queries, keys, scores);
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        UNROLL for (int e = 0; e < 2; ++e) {
            const int cell = j * 8 + column + e;
            const bool seen = !in_part || ages[cell] <= mine;
            const float score = scores[j].thread_elements()[e] * factor + added[cell];
            given[j * 2 + e] += seen ? fast::exp2(score - sum) : 0.0f;
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
    constexpr int blocks = cells / 8;
    threadgroup T* near_keys = reinterpret_cast<threadgroup T*>(key_words);
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    keys += head_offset(of, D);
    sums += of.lines_before(0);
    given += Offset(group.y) * listed_rows * PAGE;
    const uint thread_index = simdgroup * 32u + lane;
    const int column = lane_column(lane);
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
                stage_cells<T, D>(keys + at, piece.alive, near_keys, thread_index, SIMDS * 32);
                stage_sight(
                    piece, cells, order, bias, sizes.biased, in_part, added, ages, thread_index);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                float mine[blocks * 2];
                UNROLL for (int i = 0; i < blocks * 2; ++i) mine[i] = 0.0f;
                const int last = sizes.lines() - 1;
                for (int first = int(simdgroup) * 8; first <= last; first += SIMDS * 8) {
                    const int64_t newest = query_order[min(first + 7, last) / sizes.group];
                    if (in_part && bounds[Offset(row) * 2] > newest) continue;
                    const int line = first + lane_row(lane);
                    const bool real = line <= last;
                    const Offset place = line_place(of, min(line, last));
                    const float sum = sums[place];
                    simdgroup_matrix<T, 8, 8> eight[D / 8];
                    load_lines<T, D>(turned + place * D, real, column, eight);
                    mass_take<T, D, blocks>(
                        eight, near_keys, added, ages, in_part,
                        query_order[min(line, last) / sizes.group], scale * LOG2_E,
                        real && sum > UNSEEN ? sum : NOTHING, column, mine);
                }
                // Lanes of the same columns, then simdgroups.
                UNROLL for (int i = 0; i < blocks * 2; ++i) {
                    mine[i] += simd_shuffle_xor(mine[i], ushort(2));
                    mine[i] += simd_shuffle_xor(mine[i], ushort(4));
                    mine[i] += simd_shuffle_xor(mine[i], ushort(16));
                    if (lane_row(lane) == 0) {
                        joined[int(simdgroup) * SUBBLOCK + (i / 2) * 8 + column + i % 2] = mine[i];
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
