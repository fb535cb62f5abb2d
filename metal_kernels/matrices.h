// Matrices of 8 by 8 across a simdgroup, as the attention kernels put them to use.
//
// A lane holds two neighbours of a row of a matrix, at the place that MLX's own kernels take it to
// hold on all of Apple's GPUs. Where a machine multiplies larger matrices at once, or wants a right
// factor to lie otherwise, its dialect says so in place of what stands here under `OMNI_MATRICES`.
#pragma once
#include "attend.h"

// Where a lane's two numbers stand in a matrix, and the first's column.
inline int lane_row(uint lane) { return int((lane >> 2) & 4u) + int((lane >> 1) & 3u); }
inline int lane_column(uint lane) { return int((lane >> 1) & 4u) + int(lane & 1u) * 2; }

// The lane that holds a row's number of a column.
inline ushort lane_at(int row, int column) {
    return ushort((row & 4) << 2 | (row & 3) << 1 | (column & 4) << 1 | (column & 2) >> 1);
}

// Of two numbers that lanes hold of the lines in their columns, that of the line in the lane's row.
inline float turned_to_row(float first, float second, uint lane) {
    const int row = lane_row(lane);
    const ushort from = lane_at(0, row);
    const float even = simd_shuffle(first, from);
    const float odd = simd_shuffle(second, from);
    return row % 2 == 0 ? even : odd;
}

// Eight neighbours of a row, as they come from memory.
template <typename T>
struct Eight {
    uint words[2 * sizeof(T)];
};

// Eight numbers, or zeros where there are none.
template <typename T>
inline Eight<T> eight_at(const device T* from, bool there) {
    Eight<T> eight;
    UNROLL for (int i = 0; i < int(sizeof(T)) / 2; ++i) {
        uint4 words = {0u, 0u, 0u, 0u};
        if (there) words = reinterpret_cast<const device uint4*>(from)[i];
        eight.words[i * 4] = words.x;
        eight.words[i * 4 + 1] = words.y;
        eight.words[i * 4 + 2] = words.z;
        eight.words[i * 4 + 3] = words.w;
    }
    return eight;
}

template <typename T>
inline T number_of(const thread uint* words, int index) {
    return as_type<T>(ushort(words[index / 2] >> (index % 2 * 16)));
}
template <>
inline float number_of<float>(const thread uint* words, int index) {
    return as_type<float>(words[index]);
}

template <typename T>
inline simdgroup_matrix<T, 8, 8> matrix_of(T first, T second) {
    simdgroup_matrix<T, 8, 8> matrix;
    matrix.thread_elements()[0] = first;
    matrix.thread_elements()[1] = second;
    return matrix;
}

// A matrix of each lane's numbers `2 * pair` and the next: its columns are spread over 32.
template <typename T>
inline simdgroup_matrix<T, 8, 8> spread_matrix(const thread Eight<T>& eight, int pair) {
    return matrix_of(
        number_of<T>(eight.words, pair * 2), number_of<T>(eight.words, pair * 2 + 1));
}

#ifndef OMNI_MATRICES

// Rows for columns.
template <typename T>
inline simdgroup_matrix<T, 8, 8> across(thread simdgroup_matrix<T, 8, 8>& matrix, uint lane) {
    const int row = lane_row(lane);
    simdgroup_matrix<T, 8, 8> turned;
    UNROLL for (int e = 0; e < 2; ++e) {
        const ushort from = lane_at(lane_column(lane) + e, row);
        const float even = simd_shuffle(float(matrix.thread_elements()[0]), from);
        const float odd = simd_shuffle(float(matrix.thread_elements()[1]), from);
        turned.thread_elements()[e] = T(row % 2 == 0 ? even : odd);
    }
    return turned;
}

// Eight lines, to be multiplied by from the left.
template <typename T>
struct Factor {
    simdgroup_matrix<T, 8, 8> matrix;
};
template <typename T>
inline Factor<T> factor_of(thread simdgroup_matrix<T, 8, 8>& lines, uint lane) {
    return Factor<T>{across(lines, lane)};
}

// Of lines that stand in columns already.
template <typename T>
inline Factor<T> standing_factor(thread simdgroup_matrix<T, 8, 8>& lines) {
    return Factor<T>{lines};
}

// What a mask leaves of a word, as halves of 1024 and more.
inline uint over_1024(uint word, uint mask) { return (word & mask) | 0x64006400u; }

// Both halves of words, `a * b + c`.
inline uint two_halves(uint a, uint b, uint c) {
    return as_type<uint>(half2(fma(as_type<half2>(a), as_type<half2>(b), as_type<half2>(c))));
}

// Sixteen cells' keys, or values, of sixteen columns.
template <typename T>
struct Quad {
    simdgroup_matrix<T, 8, 8> parts[2][2];  // of eight cells, of eight columns
};
template <typename T>
struct Keys : Quad<T> {};
template <typename T>
struct Values : Quad<T> {};

// Of what a lane read of a cell and of the eighth after it, its numbers from `2 * pair` on.
template <typename Q, typename T>
inline Q spread_quad(const thread Eight<T>& first, const thread Eight<T>& next, int pair) {
    Q quad;
    UNROLL for (int k = 0; k < 2; ++k) {
        quad.parts[0][k] = spread_matrix(first, pair + k);
        quad.parts[1][k] = spread_matrix(next, pair + k);
    }
    return quad;
}

// From threadgroup memory.
template <typename Q, typename T>
inline Q load_quad(const threadgroup T* from, int pitch, uint) {
    Q quad;
    UNROLL for (int i = 0; i < 2; ++i) {
        UNROLL for (int k = 0; k < 2; ++k) {
            simdgroup_load(quad.parts[i][k], from + i * 8 * pitch + k * 8, pitch);
        }
    }
    return quad;
}

// Adds the keys' products with two factors' columns to the scores of sixteen cells.
template <typename T>
inline void score(
    thread simdgroup_matrix<float, 8, 8>* scores,
    thread Keys<T>& keys,
    thread Factor<T>* lines) {
    UNROLL for (int k = 0; k < 2; ++k) {
        UNROLL for (int i = 0; i < 2; ++i) {
            simdgroup_multiply_accumulate(
                scores[i], keys.parts[i][k], lines[k].matrix, scores[i]);
        }
    }
}

// Whether what is mixed has its lines in columns, and not in rows.
constant constexpr bool LINES_ACROSS = false;

// Whether lanes have registers for values beside keys: Apple's have half of NVIDIA's.
constant constexpr bool READS_AHEAD = false;

// How much lines, in columns, take of sixteen cells.
template <typename T>
struct Shares {
    simdgroup_matrix<T, 8, 8> parts[2];
};
template <typename T>
inline Shares<T> shares_of(thread simdgroup_matrix<T, 8, 8>* weights, uint lane) {
    return Shares<T>{{across(weights[0], lane), across(weights[1], lane)}};
}

// Adds the values by these shares to two matrices of columns.
template <typename T>
inline void mix(
    thread simdgroup_matrix<float, 8, 8>* mixed,
    thread Shares<T>& shares,
    thread Values<T>& values) {
    UNROLL for (int i = 0; i < 2; ++i) {
        UNROLL for (int k = 0; k < 2; ++k) {
            simdgroup_multiply_accumulate(mixed[k], shares.parts[i], values.parts[i][k], mixed[k]);
        }
    }
}

#endif
