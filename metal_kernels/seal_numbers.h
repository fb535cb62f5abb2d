// Numbers as a format defines them, to the bit: sums in its order, quotients and roots rounded to
// nearest, no product taken into a sum. What is done here, omni_core's definition does in float32.
//
// A lane has a cell of a subblock, and in threadgroup memory a column of its channels.
#pragma once
#include "sealed_page.h"

#pragma METAL fp contract(off)

#ifndef OMNI_ROUNDS
inline float rounded_product(float a, float b) { return a * b; }
#endif

constant constexpr float LARGEST_HALF = 65504.0f;

// The power of two that is not below a head's channels.
constexpr int power_above(int head_dim) {
    return head_dim <= 16 ? 16 : head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128;
}

// Where a lane's number of a channel stands.
inline int at_channel(int channel, uint lane) { return channel * SUBBLOCK + int(lane); }

inline bool is_finite(float x) { return fabs(x) <= 3.402823466e38f; }

// Over the cells: the second half is added to the first until one number is left.
inline float folded_cells(float x) {
    UNROLL for (int step = SUBBLOCK / 2; step > 0; step /= 2) {
        x += simd_shuffle_xor(x, ushort(step));
    }
    return x;
}

// Squares of a cell's numbers, less those of `middle` if there are any, likewise over the channels.
template <int D, bool APART>
inline float folded_squares(
    const threadgroup float* x,
    const threadgroup float* middle,
    threadgroup float* spare,  // [power_above(D) / 2, SUBBLOCK]
    uint lane) {
    constexpr int half_size = power_above(D) / 2;
    ROLLED for (int i = 0; i < half_size; ++i) {
        const float first = x[at_channel(i, lane)] - (APART ? middle[i] : 0.0f);
        float sum = rounded_product(first, first);
        if (i + half_size < D) {
            const float second =
                x[at_channel(i + half_size, lane)] - (APART ? middle[i + half_size] : 0.0f);
            sum += rounded_product(second, second);
        }
        spare[at_channel(i, lane)] = sum;
    }
    ROLLED for (int size = half_size / 2; size > 0; size /= 2) {
        ROLLED for (int i = 0; i < size; ++i) {
            spare[at_channel(i, lane)] += spare[at_channel(i + size, lane)];
        }
    }
    return spare[lane];
}

// The exponent byte of a block of 32 numbers, one a lane.
inline uint exponent_of(float x) {
    const uint bits = as_type<uint>(simd_max(fabs(x)));
    const int found = int(bits >> 23) - 2 + ((bits & 0x7fffffu) > 0x400000u ? 1 : 0);
    return uint(min(max(found, 1), 254));
}

// The number of a code.
inline float decoded(uint code, uint exponent) {
    return mxfp4(code, as_type<float>(exponent << 23) * 0.5f);
}

// The code nearest; half way, the larger magnitude.
inline uint encoded(float x, uint exponent) {
    const float s = fabs(precise::divide(x, as_type<float>(exponent << 23)));
    const float middles[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    uint magnitude = 0u;
    UNROLL for (int i = 0; i < 7; ++i) magnitude += s >= middles[i] ? 1u : 0u;
    return x < 0.0f && magnitude > 0u ? magnitude | 8u : magnitude;
}

// Of the two neighbouring codes that a number lies between, the lesser or the other.
inline uint around(float x, uint exponent, bool upper) {
    const float s = precise::divide(x, as_type<float>(exponent << 23));
    const float grid[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    int at = 0;
    UNROLL for (int i = 0; i < 8; ++i) {
        at += s >= grid[i] ? 1 : 0;
        if (i > 0) at += s >= -grid[i] ? 1 : 0;
    }
    at = min(max(at, 1), 14) - (upper ? 0 : 1);
    return at < 7 ? uint(7 - at) | 8u : uint(at - 7);
}

// The level nearest, as a code; half way, the upper one.
template <int BITS>
inline float nearest(float x, float centre, float step) {
    const float apart = step > 0.0f ? precise::divide(x - centre, step) : 0.0f;
    const float above = floor(apart + float(1 << (BITS - 1)));
    return min(max(above, 0.0f), float((1 << BITS) - 1));
}

// A number of channel, cell and lane alike is one that one lane writes for all.
inline void put_for_all(threadgroup float* to, float x, uint lane) {
    if (lane == 0u) *to = x;
}
