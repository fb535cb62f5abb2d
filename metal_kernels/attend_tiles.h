// Cells of a subblock in threadgroup memory, and their scores.
#pragma once
#include "running.h"

// Cells that are in threadgroup memory at once, so that keys and values both fit.
constexpr int tile_cells(int number_size) { return number_size == 4 ? SUBBLOCK / 2 : SUBBLOCK; }

// Columns there: whole matrices of 16, with zeros behind a head that has fewer.
constexpr int tile_columns(int head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr int tile_steps(int head_dim) { return tile_columns(head_dim) / 8; }

// Numbers from a cell to the next there: 16 bytes more than it has, so that columns spread.
constexpr int tile_pitch(int head_dim, int number_size) {
    return tile_columns(head_dim) + 16 / number_size;
}

// All numbers of cells there, in 16 bytes each.
constexpr int tile_words(int head_dim, int number_size) {
    return tile_cells(number_size) * tile_pitch(head_dim, number_size) * number_size / 16;
}

// What a thread brings in of a piece's cells: of live ones their numbers, of dead ones zeros.
template <typename T, int D, int THREADS>
struct Brought {
    static constexpr constant int WIDE = 16 / sizeof(T);
    static constexpr constant int PIECES = tile_columns(D) / WIDE;  // of a cell
    static constexpr constant int ALL = tile_cells(sizeof(T)) * PIECES;
    static constexpr constant int TURNS = (ALL + THREADS - 1) / THREADS;
    uint4 words[TURNS];

    void ask(const device T* from, uint alive, uint thread_index) {
        UNROLL for (int turn = 0; turn < TURNS; ++turn) {
            const int i = turn * THREADS + int(thread_index);
            const int cell = i / PIECES;
            const int column = i % PIECES * WIDE;
            const bool inside = (ALL % THREADS == 0 || i < ALL) && (D % 16 == 0 || column < D);
            words[turn] = uint4{0u, 0u, 0u, 0u};
            if (inside && ((alive >> cell) & 1u)) {
                words[turn] = *reinterpret_cast<const device uint4*>(from + cell * D + column);
            }
        }
    }

    void put(threadgroup T* to, uint thread_index) const {
        UNROLL for (int turn = 0; turn < TURNS; ++turn) {
            const int i = turn * THREADS + int(thread_index);
            if (ALL % THREADS != 0 && i >= ALL) continue;
            threadgroup T* place =
                to + i / PIECES * tile_pitch(D, sizeof(T)) + i % PIECES * WIDE;
            *reinterpret_cast<threadgroup uint4*>(place) = words[turn];
        }
    }
};

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

// Eight lines of queries: that of the lane's row begins at `line`, or there is none.
template <typename T, int D>
inline void load_lines(
    const device T* line, bool real, uint lane, thread Factor<T>* queries) {
    const int column = lane_column(lane);
    UNROLL for (int step = 0; step < tile_steps(D); ++step) {
        const bool inside = real && (D % 16 == 0 || step * 8 < D);
        T two[2] = {T(0.0f), T(0.0f)};
        UNROLL for (int e = 0; e < 2; ++e) {
            if (inside) two[e] = line[step * 8 + column + e];
        }
        simdgroup_matrix<T, 8, 8> matrix = matrix_of(two[0], two[1]);
        queries[step] = factor_of(matrix, lane);
    }
}

// What the lane's two lines see of its two cells.
inline Sight sight_of(
    const threadgroup float* added,
    const threadgroup int64_t* ages,
    bool in_part,
    const thread int64_t* mine,
    uint lane) {
    Sight sight = {15u, {added[lane_row(lane)], added[8 + lane_row(lane)]}};
    if (!in_part) return sight;
    UNROLL for (int e = 0; e < 2; ++e) {
        UNROLL for (int i = 0; i < 2; ++i) {
            if (ages[i * 8 + lane_row(lane)] > mine[e]) sight.seen ^= 1u << (e * 2 + i);
        }
    }
    return sight;
}
