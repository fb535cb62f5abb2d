// Matrices of 8 by 8, and cells of a subblock in threadgroup memory.
//
// A lane holds two neighbours of a row of a matrix, at the place that MLX's own kernels take it to
// hold on all of Apple's GPUs.
#pragma once
#include "attend.h"

// Cells that are in threadgroup memory at once, so that keys and values both fit.
constexpr int tile_cells(int number_size) { return number_size == 4 ? SUBBLOCK / 2 : SUBBLOCK; }

// Numbers from a cell to the next there: 16 bytes more than it has, so that columns spread.
constexpr int tile_pitch(int head_dim, int number_size) { return head_dim + 16 / number_size; }

// All numbers of cells there, in 16 bytes each.
constexpr int tile_words(int head_dim, int number_size) {
    return tile_cells(number_size) * tile_pitch(head_dim, number_size) * number_size / 16;
}

// Where a lane's two numbers stand in a matrix, and the first's column.
inline int lane_row(uint lane) { return int((lane >> 2) & 4u) + int((lane >> 1) & 3u); }
inline int lane_column(uint lane) { return int((lane >> 1) & 4u) + int(lane & 1u) * 2; }

// A part of a subblock's cells that fits.
struct Piece {
    uint subblock;
    int first;   // cell of the subblock
    uint alive;  // a bit for each cell, from the first on
};

inline Piece piece_of(Row row, int place, int cells) {
    const bool later = place >= SUBBLOCK;
    const int first = place % SUBBLOCK;
    return Piece{
        row.subblock(later), first, (row.alive(later) >> first) & (0xffffffffu >> (32 - cells))};
}

// Brings the numbers of live cells in, of dead ones zeros.
template <typename T, int D>
inline void stage_cells(
    const device T* from, uint alive, threadgroup T* to, uint thread_index, int threads) {
    constexpr int wide = 16 / sizeof(T);
    constexpr int pieces = D / wide;
    for (int i = int(thread_index); i < tile_cells(sizeof(T)) * pieces; i += threads) {
        const int cell = i / pieces;
        const int column = (i - cell * pieces) * wide;
        uint4 words = {0u, 0u, 0u, 0u};
        if ((alive >> cell) & 1u) {
            words = *reinterpret_cast<const device uint4*>(from + cell * D + column);
        }
        threadgroup T* place = to + cell * tile_pitch(D, sizeof(T)) + column;
        *reinterpret_cast<threadgroup uint4*>(place) = words;
    }
}

// What is added to the scores of a piece's cells, and their orders where some may not be seen.
inline void stage_sight(
    Piece piece,
    int cells,
    const device int64_t* order,
    const device float* bias,
    bool biased,
    bool in_part,
    threadgroup float* added,
    threadgroup int64_t* ages,
    uint thread_index) {
    if (thread_index >= uint(cells)) return;
    const bool there = (piece.alive >> thread_index) & 1u;
    const Offset known = Offset(piece.subblock) * SUBBLOCK + piece.first + thread_index;
    float more = there ? 0.0f : HIDDEN;
    if (biased && there) more = bias[known] * LOG2_E;
    added[thread_index] = more;
    ages[thread_index] = in_part && there ? order[known] : 0;
}

// Eight lines of queries: the lane's own line begins at `line`, or there is none.
template <typename T, int D>
inline void load_lines(
    const device T* line, bool real, int column, thread simdgroup_matrix<T, 8, 8>* queries) {
    UNROLL for (int step = 0; step < D / 8; ++step) {
        UNROLL for (int e = 0; e < 2; ++e) {
            queries[step].thread_elements()[e] = real ? line[step * 8 + column + e] : T(0.0f);
        }
    }
}

// Dot products of eight lines and the cells in threadgroup memory.
template <typename T, int D, int BLOCKS>
inline void dot_cells(
    thread simdgroup_matrix<T, 8, 8>* queries,
    const threadgroup T* keys,
    thread simdgroup_matrix<float, 8, 8>* scores) {
    constexpr int pitch = tile_pitch(D, sizeof(T));
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        scores[j].thread_elements()[0] = 0.0f;
        scores[j].thread_elements()[1] = 0.0f;
    }
    UNROLL for (int step = 0; step < D / 8; ++step) {
        // Loads that wander ahead take registers.
        simdgroup_barrier(mem_flags::mem_none);
        UNROLL for (int j = 0; j < BLOCKS; ++j) {
            simdgroup_matrix<T, 8, 8> key;
            simdgroup_load(key, keys + j * 8 * pitch + step * 8, pitch, ulong2{0, 0}, true);
            simdgroup_multiply_accumulate(scores[j], queries[step], key, scores[j]);
        }
    }
}
