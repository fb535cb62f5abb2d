// The running softmax of eight lines over cells of few bits: lines stand in columns throughout.
//
// Row `r` of a matrix `c` of a subblock's cells is cell `4 * r + c`; row `r` of a block of values'
// channels is a channel of word `r`. So what a lane masks out of the words that it reads is its
// share of matrices, for keys and for values.
#pragma once
#include "sealed_page.h"

constant constexpr int CELL_BLOCKS = SUBBLOCK / 8;

template <typename M, int STEPS, int BLOCKS>
struct SealedRunning {
    Factor<M> queries[STEPS];
    float factor[2];  // of the scores of the lane's two lines
    float ground[2];  // added to all of them, to base 2
    simdgroup_matrix<float, 8, 8> mixed[BLOCKS];
    float peak[2];
    float total[2];   // over the cells that this lane weighed
    float weight[2];  // of what was mixed of them
};

template <typename M, int STEPS, int BLOCKS>
inline void begin(thread SealedRunning<M, STEPS, BLOCKS>& now) {
    UNROLL for (int e = 0; e < 2; ++e) {
        now.peak[e] = UNSEEN;
        now.total[e] = 0.0f;
        now.weight[e] = 0.0f;
    }
    UNROLL for (int block = 0; block < BLOCKS; ++block) now.mixed[block] = matrix_of(0.0f, 0.0f);
}

// Sums and differences of what stands so far apart in a lane.
template <int COUNT>
inline void butterfly(thread float* x, int apart) {
    UNROLL for (int i = 0; i < COUNT; ++i) {
        if (i & apart) continue;
        const float first = x[i];
        x[i] = first + x[i + apart];
        x[i + apart] = first - x[i + apart];
    }
}
template <int COUNT>
inline void butterfly_lanes(thread float* x, ushort apart, uint lane) {
    UNROLL for (int i = 0; i < COUNT; ++i) {
        const float other = simd_shuffle_xor(x[i], apart);
        x[i] = lane & apart ? other - x[i] : x[i] + other;
    }
}

// The number of the lane's row as that of each of its two columns.
inline float turned_to_column(float x, int e, uint lane) {
    return simd_shuffle(x, lane_at(lane_column(lane) + e, 0));
}

// Eight queries, rotated as keys are: that of the lane's row begins at `line`, or there is none. The
// channels of a lane differ in all bits of their numbers but two, which are those of its column.
template <typename T, int D, int BITS>
inline void rotate_queries(
    thread SealedRunning<typename Coded<T>::Number, Form<D, BITS>::STEPS, Form<D, BITS>::BLOCKS>&
        now,
    const device T* line,
    bool real,
    const device float* mean,  // of the keys, rotated
    float scale,
    uint lane) {
    typedef Form<D, BITS> form;
    typedef typename Coded<T>::Number M;
    constexpr int word = 2 * form::PLACES;  // channels
    constexpr int count = form::STEPS * 2;
    constexpr int block = D & -D;
    const int own = lane_column(lane) / 2;
    float x[count];
    float y[count];
    UNROLL for (int turn = 0; turn < form::KEY_TURNS; ++turn) {
        const int i = turn * 4 + own;
        const bool inside = form::KEY_WORDS % 4 == 0 || i < form::KEY_WORDS;
        UNROLL for (int c = 0; c < word; ++c) x[turn * word + c] = y[turn * word + c] = 0.0f;
        UNROLL for (int c = 0; c < word; c += 8) {
            if (inside && real) load8(line + i * word + c, x + turn * word + c);
            if (inside) load8(mean + i * word + c, y + turn * word + c);
        }
    }
    UNROLL for (int apart = 1; apart < word; apart *= 2) {
        if (apart < block) butterfly<count>(x, apart);
    }
    if (word < block) butterfly_lanes<count>(x, ushort(1), lane);
    if (2 * word < block) butterfly_lanes<count>(x, ushort(8), lane);
    UNROLL for (int apart = word; apart < count; apart *= 2) {
        if (apart * 4 < block) butterfly<count>(x, apart);
    }
    float largest = 0.0f;
    float ground = 0.0f;
    UNROLL for (int i = 0; i < count; ++i) {
        x[i] *= inverse_root(block);
        largest = max(largest, fabs(x[i]));
        ground += x[i] * y[i];
    }
    UNROLL for (int step = 1; step < 9; step *= 8) {
        largest = max(largest, simd_shuffle_xor(largest, ushort(step)));
        ground += simd_shuffle_xor(ground, ushort(step));
    }
    // Halves are to be near 1.
    if (sizeof(M) == 4 || !(largest > 0.0f)) largest = 1.0f;
    const float share = 1.0f / largest;
    UNROLL for (int step = 0; step < form::STEPS; ++step) {
        simdgroup_matrix<M, 8, 8> query =
            matrix_of(M(x[step * 2] * share), M(x[step * 2 + 1] * share));
        now.queries[step] = factor_of(query, lane);
    }
    UNROLL for (int e = 0; e < 2; ++e) {
        now.factor[e] = turned_to_column(largest, e, lane) * scale * LOG2_E;
        now.ground[e] = turned_to_column(ground, e, lane) * scale * LOG2_E;
    }
}

// What the lane knows of its four cells, one of each matrix.
struct SealedSight {
    uint alive;  // a bit for each
    float norms[CELL_BLOCKS];
    float scales[CELL_BLOCKS];  // of their values
    float added[CELL_BLOCKS];   // to their scores
};

template <int D, int BITS>
inline SealedSight sealed_sight(
    Sealed from, const device float* bias, bool biased, uint lane) {
    typedef Form<D, BITS> form;
    const int row = lane_row(lane);
    const device uchar* page = from.page + from.which * 2 * SUBBLOCK;
    const uint2 norms =
        reinterpret_cast<const device uint2*>(page + form::KEY_SCALES_AT)[row];
    const uint2 scales =
        reinterpret_cast<const device uint2*>(page + form::VALUE_SCALES_AT)[row];
    SealedSight sight = {
        (from.alive >> (row * 4)) & 15u,
        {low_of<float16_t>(norms.x), high_of<float16_t>(norms.x), low_of<float16_t>(norms.y),
         high_of<float16_t>(norms.y)},
        {low_of<float16_t>(scales.x), high_of<float16_t>(scales.x), low_of<float16_t>(scales.y),
         high_of<float16_t>(scales.y)},
        {0.0f, 0.0f, 0.0f, 0.0f}};
    if (biased) {
        load4(bias + from.known + row * 4, sight.added);
        UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) sight.added[i] *= LOG2_E;
    }
    return sight;
}

// Takes the scores of a subblock in; gives how much is to be mixed of each cell.
template <typename M, int STEPS, int BLOCKS>
inline void sealed_weigh(
    thread SealedRunning<M, STEPS, BLOCKS>& now,
    thread simdgroup_matrix<float, 8, 8>* scores,
    thread SealedSight& sight,
    thread Factor<M>* weights) {
    float own[CELL_BLOCKS][2];
    float shrink[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        float top = UNSEEN;
        UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) {
            const bool there = (sight.alive >> i) & 1u;
            const float factor = now.factor[e] * sight.norms[i];
            const float score = scores[i].thread_elements()[e] * factor + sight.added[i];
            own[i][e] = there ? score : HIDDEN;
            top = max(top, own[i][e]);
        }
        top = max(now.peak[e], column_max(top));
        shrink[e] = fast::exp2(now.peak[e] - top);
        now.peak[e] = top;
        now.total[e] *= shrink[e];
        now.weight[e] *= shrink[e];
        UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) {
            const float share = fast::exp2(own[i][e] - top);
            now.total[e] += share;
            // What a dead cell holds may be anything.
            own[i][e] = (sight.alive >> i) & 1u ? share * sight.scales[i] : 0.0f;
        }
    }
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
        UNROLL for (int e = 0; e < 2; ++e) now.mixed[block].thread_elements()[e] *= shrink[e];
    }
    UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) {
        simdgroup_matrix<M, 8, 8> columns = matrix_of(M(own[i][0]), M(own[i][1]));
        UNROLL for (int e = 0; e < 2; ++e) now.weight[e] += float(columns.thread_elements()[e]);
        weights[i] = standing_factor(columns);
    }
}

// The channel of a value's block that the lane's row stands for.
template <int D, int BITS>
inline int sealed_channel(int block, uint lane) {
    constexpr int places = Form<D, BITS>::PLACES;
    return (block / places * 8 + lane_row(lane)) * places + block % places;
}
