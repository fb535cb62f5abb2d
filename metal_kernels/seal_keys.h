// A subblock's keys as codes: omni_core's codec `fitted`, by its very steps.
#pragma once
#include "seal_numbers.h"

// What a simdgroup has in threadgroup memory: a column a cell, and numbers of each channel.
template <int D>
struct Bench {
    threadgroup float* x;      // [D, SUBBLOCK]
    threadgroup float* spare;  // [power_above(D) / 2, SUBBLOCK]
    threadgroup float* mean;   // [D]
    threadgroup float* centre;
    threadgroup float* step;
    threadgroup uint* ranges;     // [D]: codes of offset and span
    threadgroup uint* exponents;  // [blocks, 2]
};

// What the host says of the codec.
struct About {
    float drawn;    // a first step, of the extent
    float wider;    // how much longer steps are with feedback
    float widened;  // what brings a value's coordinates to variance 1
};

// Keys less their means, rotated and of norm 1; gives the norm as it is stored.
template <typename T, int D>
inline float16_t unit_keys(
    Bench<D> bench, const device T* key, bool filled, const device float* means, uint lane,
    thread bool& sound) {
    ROLLED for (int d = 0; d < D; ++d) {
        const float number = filled ? float(key[d]) : 0.0f;
        sound = sound && is_finite(number);
        bench.x[at_channel(d, lane)] = filled && is_finite(number) ? number - means[d] : 0.0f;
    }
    const float norm =
        precise::sqrt(folded_squares<D, false>(bench.x, bench.mean, bench.spare, lane));
    const float16_t scale = float16_t(min(norm, LARGEST_HALF));
    constexpr int block = D & -D;
    ROLLED for (int apart = 1; apart < block; apart *= 2) {
        ROLLED for (int i = 0; i < D; ++i) {
            if (i & apart) continue;
            const float first = bench.x[at_channel(i, lane)];
            const float second = bench.x[at_channel(i + apart, lane)];
            bench.x[at_channel(i, lane)] = first + second;
            bench.x[at_channel(i + apart, lane)] = first - second;
        }
    }
    const float by = float(scale);
    ROLLED for (int d = 0; d < D; ++d) {
        const float turned = rounded_product(bench.x[at_channel(d, lane)], inverse_root(block));
        bench.x[at_channel(d, lane)] = by > 0.0f ? precise::divide(turned, by) : 0.0f;
    }
    return scale;
}

// What the lane's cell counts in the fit: of all cells together 1, or 0.
template <int D>
inline float fit_weight(Bench<D> bench, bool live, uint lane) {
    const float alive = live ? 1.0f : 0.0f;
    const float count = max(simd_sum(alive), 1.0f);
    ROLLED for (int d = 0; d < D; ++d) {
        const float mean = precise::divide(folded_cells(bench.x[at_channel(d, lane)]), count);
        put_for_all(bench.mean + d, mean, lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const float far = folded_squares<D, true>(bench.x, bench.mean, bench.spare, lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const float distance = live ? far : 0.0f;
    const float usual = precise::divide(folded_cells(distance), count);
    float weight = alive;
    if (usual > 0.0f) weight = live ? max(distance, usual) : 0.0f;
    const float total = folded_cells(weight);
    return total > 0.0f ? precise::divide(weight, total) : 0.0f;
}

// Centre and step of the line through each channel's numbers and first codes, and their mean.
template <int D, int BITS>
inline void fit_lines(Bench<D> bench, bool live, float weight, About about, uint lane) {
    const float middle = middle_of(BITS);
    ROLLED for (int d = 0; d < D; ++d) {
        const float x = bench.x[at_channel(d, lane)];
        float least = simd_min(live ? x : -HIDDEN);
        float most = simd_max(live ? x : HIDDEN);
        if (least > most) least = most = 0.0f;
        float step = rounded_product(most - least, about.drawn);
        const float first = rounded_product(least + most, 0.5f);
        const float level = nearest<BITS>(x, first, step) - middle;
        const float mean = folded_cells(rounded_product(x, weight));
        const float usual = folded_cells(rounded_product(level, weight));
        const float apart = rounded_product(level - usual, weight);
        const float spread = folded_cells(rounded_product(level, apart));
        const float slope = folded_cells(rounded_product(x - mean, apart));
        if (spread > 0.0f) step = precise::divide(slope, spread);
        put_for_all(bench.mean + d, mean, lane);
        put_for_all(bench.step + d, step, lane);
        put_for_all(bench.centre + d, mean - rounded_product(step, usual), lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The exponents of blocks of channels, and steps that reach to where a channel really is.
template <int D, int BITS>
inline void fit_exponents(Bench<D> bench, uint lane) {
    ROLLED for (int block = 0; block < (D + 31) / 32; ++block) {
        const int d = block * 32 + int(lane);
        const bool inside = D % 32 == 0 || d < D;
        const float centre = inside ? bench.centre[d] : 0.0f;
        const uint offsets = exponent_of(centre);
        const float away = fabs(centre - decoded(encoded(centre, offsets), offsets));
        float step = inside ? bench.step[d] : 0.0f;
        step = max(step, precise::divide(away, middle_of(BITS)));
        if (inside) bench.step[d] = step;
        const uint spans = exponent_of(inside ? step : 0.0f);
        if (lane == 0u) {
            bench.exponents[block * 2] = offsets;
            bench.exponents[block * 2 + 1] = spans;
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Of the numbers around each step and, for each, around the centre that suits it, the pair that errs
// least.
template <int D, int BITS>
inline void fit_ranges(Bench<D> bench, float weight, uint lane) {
    const float middle = middle_of(BITS);
    ROLLED for (int d = 0; d < D; ++d) {
        const float x = bench.x[at_channel(d, lane)];
        const uint offset_exponent = bench.exponents[d / 32 * 2];
        const uint span_exponent = bench.exponents[d / 32 * 2 + 1];
        float least = 0.0f;
        uint best = 0u;
        ROLLED for (int tried = 0; tried < 2; ++tried) {
            const uint span_code = around(bench.step[d], span_exponent, tried != 0);
            const float span = decoded(span_code, span_exponent);
            const float level = nearest<BITS>(x, bench.centre[d], span) - middle;
            const float usual = folded_cells(rounded_product(level, weight));
            const float suited = bench.mean[d] - rounded_product(span, usual);
            ROLLED for (int side = 0; side < 2; ++side) {
                const uint code = around(suited, offset_exponent, side != 0);
                const float offset = decoded(code, offset_exponent);
                const float reached = nearest<BITS>(x, offset, span) - middle;
                const float gap = x - offset - rounded_product(span, reached);
                const float error =
                    folded_cells(rounded_product(rounded_product(gap, gap), weight));
                if ((tried == 0 && side == 0) || error < least) {
                    least = error;
                    best = code | span_code << 4;
                }
            }
        }
        if (lane == 0u) bench.ranges[d] = best;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// With feedback a channel has to reach what those before it ask for, beside its own numbers.
template <int D>
inline void widen(Bench<D> bench, float wider, uint lane) {
    ROLLED for (int block = 0; block < (D + 31) / 32; ++block) {
        const int d = block * 32 + int(lane);
        const bool inside = D % 32 == 0 || d < D;
        const uint both = inside ? bench.ranges[d] : 0u;
        const uint before = bench.exponents[block * 2 + 1];
        const float step = rounded_product(decoded(both >> 4, before), wider);
        const uint exponent = exponent_of(step);
        if (inside) bench.ranges[d] = (both & 15u) | encoded(step, exponent) << 4;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (lane == 0u) bench.exponents[block * 2 + 1] = exponent;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Codes take the place of the numbers; with feedback, of what each channel is asked for.
template <int D, int BITS, bool FED>
inline void code_keys(
    Bench<D> bench, const device float* feedback, device float* kept, uint lane) {
    if (FED) {
        ROLLED for (int d = 0; d < D; ++d) {
            kept[at_channel(d, lane)] = bench.x[at_channel(d, lane)];
        }
    }
    ROLLED for (int d = 0; d < D; ++d) {
        const float offset = decoded(bench.ranges[d], bench.exponents[d / 32 * 2]);
        const float span = decoded(bench.ranges[d] >> 4, bench.exponents[d / 32 * 2 + 1]);
        const float code = nearest<BITS>(bench.x[at_channel(d, lane)], offset, span);
        bench.x[at_channel(d, lane)] = code;
        if (!FED) continue;
        const float reached = rounded_product(span, code - middle_of(BITS));
        const float error = kept[at_channel(d, lane)] - offset - reached;
        ROLLED for (int e = d + 1; e < D; ++e) {
            bench.x[at_channel(e, lane)] += rounded_product(error, feedback[d * D + e]);
        }
    }
}
