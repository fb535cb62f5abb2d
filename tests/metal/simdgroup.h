// What the lanes of a simdgroup and of a threadgroup do together, and atomics.
#pragma once

#define RUNNER_PLACE runner::Place place = {__builtin_FILE(), __builtin_LINE()}

namespace metal {

enum class mem_flags : uint {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_device_and_threadgroup = 3,
};
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

inline void threadgroup_barrier(mem_flags, RUNNER_PLACE) { runner::wait_for_group(place); }
inline void simdgroup_barrier(mem_flags, RUNNER_PLACE) { runner::share(char(0), place); }

// In the order of a butterfly, the same in all lanes.
template <typename T, typename F>
T simd_reduce(T value, runner::Place place, F combine) {
    T all[runner::simd_width];
    std::memcpy(static_cast<void*>(all), runner::share(value, place), sizeof(all));
    for (uint width = runner::simd_width / 2; width; width /= 2)
        for (uint i = 0; i < width; i++) all[i] = combine(all[i], all[i + width]);
    return all[0];
}
template <typename T>
T simd_sum(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return T(a + b); });
}
template <typename T>
T simd_product(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return T(a * b); });
}
template <typename T>
T simd_max(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return max(a, b); });
}
template <typename T>
T simd_min(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return min(a, b); });
}
template <typename T>
T simd_or(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return T(a | b); });
}
template <typename T>
T simd_and(T x, RUNNER_PLACE) {
    return simd_reduce(x, place, [](T a, T b) { return T(a & b); });
}
inline bool simd_any(bool x, RUNNER_PLACE) { return simd_or<uint>(x, place); }
inline bool simd_all(bool x, RUNNER_PLACE) { return simd_and<uint>(x, place); }

template <typename T>
T simd_take(T x, uint from, runner::Place place) {
    const T* all = runner::share(x, place);
    if (from >= runner::simd_width) runner::fail("a simdgroup has no lane beyond 31", place);
    return all[from];
}
template <typename T>
T simd_shuffle(T x, ushort from, RUNNER_PLACE) { return simd_take(x, from, place); }
template <typename T>
T simd_broadcast(T x, ushort from, RUNNER_PLACE) { return simd_take(x, from, place); }
template <typename T>
T simd_broadcast_first(T x, RUNNER_PLACE) { return simd_take(x, 0, place); }
template <typename T>
T simd_shuffle_xor(T x, ushort mask, RUNNER_PLACE) {
    return simd_take(x, runner::lane().lane ^ mask, place);
}
// A lane that has no such neighbour gets its own value.
template <typename T>
T simd_shuffle_down(T x, ushort delta, RUNNER_PLACE) {
    uint here = runner::lane().lane;
    return simd_take(x, here + delta < runner::simd_width ? here + delta : here, place);
}
template <typename T>
T simd_shuffle_up(T x, ushort delta, RUNNER_PLACE) {
    uint here = runner::lane().lane;
    return simd_take(x, here >= delta ? here - delta : here, place);
}
template <typename T>
T simd_prefix_exclusive_sum(T x, RUNNER_PLACE) {
    const T* all = runner::share(x, place);
    T sum = T(0);
    for (uint i = 0; i < runner::lane().lane; i++) sum = T(sum + all[i]);
    return sum;
}
template <typename T>
T simd_prefix_inclusive_sum(T x, RUNNER_PLACE) {
    T before = simd_prefix_exclusive_sum(x, place);
    return T(before + x);
}

// A lane holds two neighbours of a row. Which, is Apple's secret: kernels that rely on it would
// follow what MLX's own rely on, and so does this.
template <typename T, int Rows, int Columns>
struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "simdgroup matrices are 8 by 8");
    vec<T, 2> held;
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal) {
        for (int i = 0; i < 2; i++) held[i] = row() == column() + i ? diagonal : T(0);
    }
    vec<T, 2>& thread_elements() { return held; }
    static int row() { return (runner::lane().lane / 4 & 4) + runner::lane().lane / 2 % 4; }
    static int column() { return (runner::lane().lane / 4 & 2) * 2 + runner::lane().lane % 2 * 2; }
    // The lane that holds a row's number, and which of its two.
    static int holder(int r, int c) {
        return (r & 4) << 2 | (c & 4) << 1 | (r & 3) << 1 | (c >> 1 & 1);
    }
    static int which(int c) { return c & 1; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int R, int C>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, R, C> filled;
    filled.held = vec<T, 2>(value, value);
    return filled;
}
template <typename T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, ulong pitch = 8,
                    ulong2 origin = ulong2(0), bool transposed = false) {
    for (int i = 0; i < 2; i++) {
        ulong r = m.row(), c = m.column() + i;
        if (transposed) { ulong swap = r; r = c; c = swap; }
        m.held[i] = from[(r + origin.y) * pitch + c + origin.x];
    }
}
template <typename T>
void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, ulong pitch = 8,
                     ulong2 origin = ulong2(0), bool transposed = false) {
    for (int i = 0; i < 2; i++) {
        ulong r = m.row(), c = m.column() + i;
        if (transposed) { ulong swap = r; r = c; c = swap; }
        to[(r + origin.y) * pitch + c + origin.x] = m.held[i];
    }
}
// d = a * b + c, the products summed in float32.
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b,
                                   const simdgroup_matrix<C, 8, 8>& c, RUNNER_PLACE) {
    struct Both {
        vec<A, 2> a;
        vec<B, 2> b;
    };
    const Both* all = runner::share(Both{a.held, b.held}, place);
    float left[8];
    for (int k = 0; k < 8; k++) left[k] = float(all[d.holder(d.row(), k)].a[d.which(k)]);
    for (int i = 0; i < 2; i++) {
        int column = d.column() + i;
        float sum = float(c.held[i]);
        for (int k = 0; k < 8; k++)
            sum += left[k] * float(all[d.holder(k, column)].b[d.which(column)]);
        d.held[i] = D(sum);
    }
}
template <typename D, typename A, typename B>
void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                        const simdgroup_matrix<B, 8, 8>& b, RUNNER_PLACE) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), place);
}

// Fibers give way only at barriers, so plain reads and writes are atomic.
enum memory_order { memory_order_relaxed };
template <typename T>
struct atomic {
    T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
template <typename T>
T atomic_load_explicit(const atomic<T>* at, memory_order) { return at->value; }
template <typename T, typename U>
void atomic_store_explicit(atomic<T>* at, U x, memory_order) { at->value = T(x); }
template <typename T, typename U>
T atomic_fetch_add_explicit(atomic<T>* at, U x, memory_order) {
    T old = at->value;
    at->value = T(old + T(x));
    return old;
}
template <typename T, typename U>
T atomic_fetch_or_explicit(atomic<T>* at, U x, memory_order) {
    T old = at->value;
    at->value = T(old | T(x));
    return old;
}
template <typename T, typename U>
T atomic_fetch_max_explicit(atomic<T>* at, U x, memory_order) {
    T old = at->value;
    at->value = max(old, T(x));
    return old;
}

}  // namespace metal
