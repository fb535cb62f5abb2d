// Sixteen cells under a simdgroup's eight lines.
//
// Four lanes share a row, of a key or of a value, and read 16 bytes each of it. A product's order
// of columns is free as long as both sides keep to it, so that what a lane reads is its share of
// four matrices: nothing goes through threadgroup memory.
#pragma once
#include "running.h"

// Columns in blocks of 32, the last one with zeros behind.
constexpr int wide_blocks(int head_dim) { return (head_dim + 31) / 32; }
constexpr int wide_steps(int head_dim) { return wide_blocks(head_dim) * 4; }

// Where a column of the matrix of a step stands in a head.
inline int spread_column(int step, int column) {
    return step / 4 * 32 + column / 2 * 8 + step % 4 * 2 + column % 2;
}

// Eight queries, by which keys are to be multiplied.
template <typename T, int D>
inline void read_queries(
    thread Running<T, wide_steps(D)>& now, const device T* line, bool real, uint lane) {
    const int column = lane_column(lane) * 4;
    UNROLL for (int block = 0; block < wide_blocks(D); ++block) {
        const bool inside = D % 32 == 0 || block * 32 + column < D;
        const Eight<T> eight = eight_at(line + block * 32 + column, real && inside);
        UNROLL for (int e = 0; e < 4; ++e) {
            simdgroup_matrix<T, 8, 8> query = spread_matrix(eight, e);
            now.queries[block * 4 + e] = factor_of(query, lane);
        }
    }
}

// The lane's share of two cells' rows.
template <typename T, int D>
inline void read_rows(
    const device T* cells, uint alive, uint lane, thread Eight<T> (&rows)[2][wide_blocks(D)]) {
    const int row = lane_row(lane);
    const int column = lane_column(lane) * 4;
    UNROLL for (int i = 0; i < 2; ++i) {
        UNROLL for (int block = 0; block < wide_blocks(D); ++block) {
            const bool there = (alive >> (i * 8 + row)) & 1u;
            const bool inside = D % 32 == 0 || block * 32 + column < D;
            rows[i][block] =
                eight_at(cells + (i * 8 + row) * D + block * 32 + column, there && inside);
        }
    }
}

// Takes sixteen cells into the running softmax of the lines.
template <typename T, int D>
inline void decode_take(
    thread Running<T, wide_steps(D)>& now,
    const device T* keys,
    const device T* values,
    uint alive,
    thread Sight& sight,
    float factor,
    uint lane) {
    constexpr int blocks = wide_blocks(D);
    Eight<T> k[2][blocks];
    Eight<T> v[2][blocks];
    // A dead cell weighs 0, but 0 times what it holds may be anything.
    read_rows<T, D>(keys, alive, lane, k);
    if (READS_AHEAD) read_rows<T, D>(values, alive, lane, v);
    // All of them are asked for before the first is waited for.
    simdgroup_barrier(mem_flags::mem_none);
    simdgroup_matrix<float, 8, 8> scores[2] = {matrix_of(0.0f, 0.0f), matrix_of(0.0f, 0.0f)};
    UNROLL for (int block = 0; block < blocks; ++block) {
        UNROLL for (int e = 0; e < 4; e += 2) {
            Keys<T> quad = spread_quad<Keys<T>, T>(k[0][block], k[1][block], e);
            score(scores, quad, now.queries + block * 4 + e);
        }
    }
    Shares<T> shares = weigh(now, scores, sight, factor, lane);
    if (!READS_AHEAD) read_rows<T, D>(values, alive, lane, v);
    UNROLL for (int block = 0; block < blocks; ++block) {
        UNROLL for (int e = 0; e < 4; e += 2) {
            Values<T> quad = spread_quad<Values<T>, T>(v[0][block], v[1][block], e);
            mix(now.mixed + block * 4 + e, shares, quad);
        }
    }
}
