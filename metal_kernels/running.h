// The running softmax of eight lines (a query and a head each) that a simdgroup holds.
#pragma once
#include "matrices.h"

constant constexpr int LINES = 8;
constant constexpr int TURN = 16;  // cells that are taken at a time

// What a simdgroup knows of its lines; a lane of the two that its columns of scores belong to.
template <typename T, int STEPS>
struct Running {
    Factor<T> queries[STEPS];
    simdgroup_matrix<float, 8, 8> mixed[STEPS];
    float peak[2];   // the same in all lanes of a column
    float total[2];  // over the cells that this lane weighed
};

// Of the lane's two cells of sixteen, in the rows of two matrices.
struct Sight {
    uint seen;       // a bit for each of the two, for the first line; two bits on, for the second
    float added[2];  // to their scores
};

template <typename T, int STEPS>
inline void begin(thread Running<T, STEPS>& now) {
    UNROLL for (int e = 0; e < 2; ++e) {
        now.peak[e] = UNSEEN;
        now.total[e] = 0.0f;
    }
    UNROLL for (int step = 0; step < STEPS; ++step) now.mixed[step] = matrix_of(0.0f, 0.0f);
}

// Of a number a lane, the largest or the sum of a column's eight lanes.
inline float column_max(float x) {
    x = max(x, simd_shuffle_xor(x, ushort(2)));
    x = max(x, simd_shuffle_xor(x, ushort(4)));
    return max(x, simd_shuffle_xor(x, ushort(16)));
}
inline float column_sum(float x) {
    x += simd_shuffle_xor(x, ushort(2));
    x += simd_shuffle_xor(x, ushort(4));
    return x + simd_shuffle_xor(x, ushort(16));
}

// Which line a lane's number `e` of what is mixed belongs to, and which of a matrix's columns.
inline int mixed_line(int e, uint lane) {
    return LINES_ACROSS ? lane_column(lane) + e : lane_row(lane);
}
inline int mixed_column(int e, uint lane) {
    return LINES_ACROSS ? lane_row(lane) : lane_column(lane) + e;
}

// Takes the scores of sixteen cells in; gives how much is to be mixed of each.
template <typename T, int STEPS>
inline Shares<T> weigh(
    thread Running<T, STEPS>& now,
    thread simdgroup_matrix<float, 8, 8>* scores,
    thread Sight& sight,
    float factor,
    uint lane) {
    float weights[2][2];
    float shrink[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        float top = UNSEEN;
        UNROLL for (int i = 0; i < 2; ++i) {
            const bool seen = (sight.seen >> (e * 2 + i)) & 1u;
            const float score = scores[i].thread_elements()[e] * factor + sight.added[i];
            weights[i][e] = seen ? score : HIDDEN;
            top = max(top, weights[i][e]);
        }
        top = max(now.peak[e], column_max(top));
        shrink[e] = fast::exp2(now.peak[e] - top);
        now.peak[e] = top;
        UNROLL for (int i = 0; i < 2; ++i) weights[i][e] = fast::exp2(weights[i][e] - top);
        now.total[e] = now.total[e] * shrink[e] + weights[0][e] + weights[1][e];
    }
    if (!LINES_ACROSS) shrink[0] = shrink[1] = turned_to_row(shrink[0], shrink[1], lane);
    UNROLL for (int step = 0; step < STEPS; ++step) {
        UNROLL for (int e = 0; e < 2; ++e) now.mixed[step].thread_elements()[e] *= shrink[e];
    }
    simdgroup_matrix<T, 8, 8> columns[2] = {
        matrix_of(T(weights[0][0]), T(weights[0][1])),
        matrix_of(T(weights[1][0]), T(weights[1][1]))};
    return shares_of(columns, lane);
}
