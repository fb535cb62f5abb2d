// Metal's language on NVIDIA GPUs: what the kernels use of it, ahead of their text in what
// `mx.fast.cuda_kernel` compiles. `cuda_body.h` stands between that text and the kernel function.
//
// Lanes of a simdgroup are a warp's in another order. Where Apple's 8 by 8 matrices keep two
// numbers of a row in a lane, NVIDIA's do in the lane whose middle three bits are turned round: so
// lane numbers and shuffles are translated, and matrices are not.

#define device
#define constant
#define thread
#define threadgroup

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __half float16_t;
typedef __nv_bfloat16 bfloat16_t;

constexpr uint WHOLE_WARP = 0xffffffffu;

// Bits 3, 2, 1 of a lane's number here are bits 1, 3, 2 of the warp's.
inline constexpr uint warp_lane(uint lane) {
    return (lane & 17u) | (lane & 6u) << 1 | (lane & 8u) >> 2;
}
inline uint simdgroup_lane() {
    const uint lane = threadIdx.x & 31u;
    return (lane & 17u) | (lane & 12u) >> 1 | (lane & 2u) << 2;
}

template <typename T, typename U>
inline T as_type(U x) {
    static_assert(sizeof(T) == sizeof(U), "as_type between types of different sizes");
    T result;
    memcpy(&result, &x, sizeof(T));
    return result;
}

namespace fast {
inline float exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
}  // namespace fast

namespace precise {
inline float divide(float a, float b) { return __fdiv_rn(a, b); }
inline float sqrt(float x) { return __fsqrt_rn(x); }
}  // namespace precise
// A product that no sum takes in.
inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
#define OMNI_ROUNDS

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
inline void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <typename T>
inline T simd_shuffle(T x, ushort lane) {
    return __shfl_sync(WHOLE_WARP, x, warp_lane(lane));
}
template <typename T>
inline T simd_shuffle_xor(T x, ushort mask) {
    return __shfl_xor_sync(WHOLE_WARP, x, warp_lane(mask));
}
template <typename T>
inline T simd_sum(T x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(WHOLE_WARP, x, step);
    return x;
}
template <typename T>
inline T simd_max(T x) {
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(WHOLE_WARP, x, step));
    return x;
}

template <typename T>
inline T simd_min(T x) {
    for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(WHOLE_WARP, x, step));
    return x;
}

// Two neighbours of row `warp lane / 4`.
template <typename T>
struct alignas(2 * sizeof(T)) MatrixPair {
    T first, second;
    inline T& operator[](int i) { return i == 0 ? first : second; }
    inline const T& operator[](int i) const { return i == 0 ? first : second; }
};

template <typename T, int ROWS, int COLUMNS>
struct simdgroup_matrix {
    static_assert(ROWS == 8 && COLUMNS == 8, "simdgroup matrices are 8 by 8");
    MatrixPair<T> held;
    inline MatrixPair<T>& thread_elements() { return held; }
};

template <typename T>
inline void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& matrix,
    const T* from,
    ulong pitch,
    ulong2 origin = ulong2{0, 0},
    bool transposed = false) {
    const uint row = (threadIdx.x & 31u) / 4u;
    const uint column = threadIdx.x % 4u * 2u;
    const T* corner = from + origin.y * pitch + origin.x;
    const T* at = transposed ? corner + column * pitch + row : corner + row * pitch + column;
    matrix.held.first = at[0];
    matrix.held.second = at[transposed ? pitch : 1];
}
