// Attention of many queries over a listing's live subblocks, in tiles of 8 by 8.
//
// A threadgroup takes a tile of lines (a query and a head each) of one key head, eight a simdgroup,
// and a program's share of the rows. Cells come into threadgroup memory a subblock at a time, dead
// ones as zeros; what a simdgroup adds up stays in its lanes. Source of the habits: the matrix
// kernels of MLX, and FlashAttention-2.
#pragma once
#include "attend_tiles.h"

// What a simdgroup of eight lines holds: two columns of each matrix of one line a lane.
template <typename T, int D>
struct Tile {
    simdgroup_matrix<T, 8, 8> queries[D / 8];
    simdgroup_matrix<float, 8, 8> mixed[D / 8];
    float peak;   // the same in the four lanes of a line
    float total;  // over the cells that this lane weighed
};

// Takes the cells in threadgroup memory into the running softmax of a tile.
template <typename T, int D>
inline void prefill_take(
    thread Tile<T, D>& tile,
    const threadgroup T* near_keys,
    const threadgroup T* near_values,
    const threadgroup float* added,
    const threadgroup int64_t* ages,
    bool in_part,
    int64_t mine,
    float factor,
    int column) {
    constexpr int blocks = tile_cells(sizeof(T)) / 8;
    constexpr int pitch = tile_pitch(D, sizeof(T));
    simdgroup_matrix<float, 8, 8> scores[blocks];
    dot_cells<T, D, blocks>(tile.queries, near_keys, scores);
    float top = tile.peak;
    UNROLL for (int j = 0; j < blocks; ++j) {
        UNROLL for (int e = 0; e < 2; ++e) {
            const int cell = j * 8 + column + e;
            float score = scores[j].thread_elements()[e] * factor + added[cell];
            if (in_part && ages[cell] > mine) score = HIDDEN;
            scores[j].thread_elements()[e] = score;
            top = max(top, score);
        }
    }
    // A line's four lanes.
    top = max(top, simd_shuffle_xor(top, ushort(1)));
    top = max(top, simd_shuffle_xor(top, ushort(8)));
    const float shrink = fast::exp2(tile.peak - top);
    tile.peak = top;
    tile.total *= shrink;
    UNROLL for (int step = 0; step < D / 8; ++step) {
        tile.mixed[step].thread_elements()[0] *= shrink;
        tile.mixed[step].thread_elements()[1] *= shrink;
    }
    UNROLL for (int j = 0; j < blocks; ++j) {
        simdgroup_matrix<T, 8, 8> weights;
        UNROLL for (int e = 0; e < 2; ++e) {
            const float weight = fast::exp2(scores[j].thread_elements()[e] - top);
            tile.total += weight;
            weights.thread_elements()[e] = T(weight);
        }
        UNROLL for (int step = 0; step < D / 8; ++step) {
            simdgroup_matrix<T, 8, 8> value;
            simdgroup_load(value, near_values + j * 8 * pitch + step * 8, pitch);
            simdgroup_multiply_accumulate(tile.mixed[step], weights, value, tile.mixed[step]);
        }
    }
}

// Inputs, outputs and grid as of `decode`; `near_keys` and `near_values` hold a piece's cells,
// `added` and `ages` a number a cell.
template <typename T, typename O, int D, int SIMDS>
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
    const int first_line = int(groups.x - 1u - group.x) * (SIMDS * 8);
    const int last_line = min(first_line + SIMDS * 8, sizes.lines()) - 1;
    const bool busy = first_line + int(simdgroup) * 8 <= last_line;
    const int column = lane_column(lane);
    const int line = first_line + int(simdgroup) * 8 + lane_row(lane);
    const bool real = line <= last_line;
    const int place = line_place(of, min(line, last_line));
    const int64_t oldest = query_order[first_line / sizes.group];
    const int64_t newest = query_order[last_line / sizes.group];
    const int64_t mine = query_order[min(line, last_line) / sizes.group];
    Tile<T, D> tile;
    tile.peak = UNSEEN;
    tile.total = 0.0f;
    UNROLL for (int step = 0; step < D / 8; ++step) {
        tile.mixed[step].thread_elements()[0] = 0.0f;
        tile.mixed[step].thread_elements()[1] = 0.0f;
    }
    for (int index = of.first_segment; index <= of.last_segment; ++index) {
        const Segment segment = segment_at(segments, index);
        if (segment.begin >= segment.end) continue;
        const Offset table = of.lines_before(segment.table);
        load_lines<T, D>(queries + (table + place) * D, real, column, tile.queries);
        for (int row = segment.begin; row < segment.end; ++row) {
            bool in_part = false;
            if (of.checked && row >= segment.whole) {
                // Bounds ascend: what follows is out of sight too.
                if (bounds[Offset(row) * 2] > newest) break;
                in_part = bounds[Offset(row) * 2 + 1] > oldest;
            }
            const Row two = row_at(rows, row);
            for (int next = 0; next < PAGE; next += cells) {
                const Piece piece = piece_of(two, next, cells);
                if (piece.alive == 0u) continue;
                const Offset at = subblock_offset(piece.subblock, sizes, D) + piece.first * D;
                stage_cells<T, D>(keys + at, piece.alive, near_keys, thread_index, SIMDS * 32);
                stage_cells<T, D>(values + at, piece.alive, near_values, thread_index, SIMDS * 32);
                stage_sight(
                    piece, cells, order, bias, sizes.biased, in_part, added, ages, thread_index);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (busy) {
                    prefill_take<T, D>(
                        tile, near_keys, near_values, added, ages, in_part, mine, scale * LOG2_E,
                        column);
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
    }
    if (!busy) return;
    tile.total += simd_shuffle_xor(tile.total, ushort(1));
    tile.total += simd_shuffle_xor(tile.total, ushort(8));
    if (!real) return;
    const bool seen = sees(tile.total);
    const float share = seen ? 1.0f / tile.total : 0.0f;
    const Offset target = of.lines_before(int(group.z)) + place;
    // What saw nothing has no part in a merge.
    if (seen || !of.shared) {
        UNROLL for (int step = 0; step < D / 8; ++step) {
            UNROLL for (int e = 0; e < 2; ++e) {
                out[target * D + step * 8 + column + e] =
                    O(tile.mixed[step].thread_elements()[e] * share);
            }
        }
    }
    if (column == 0) sums[target] = seen ? tile.peak + log2(tile.total) : no_sum();
}
