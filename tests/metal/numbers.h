// half and bfloat, and the functions of one number.
#pragma once

namespace runner {

inline uint bits_of(float x) {
    uint bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float from_bits(uint bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

struct HalfFormat {
    static constexpr bool from_float = true;  // without being asked for
    static ushort pack(float x) {
        uint sign = bits_of(x) >> 16 & 0x8000u, bits = bits_of(x) & 0x7fffffffu;
        if (bits > 0x7f800000u) return ushort(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
        if (bits >= 0x477ff000u) return ushort(sign | 0x7c00u);  // nearer to what would be 65536
        if (bits < 0x38800000u)  // one half has the last place that small numbers shall have
            return ushort(sign | (bits_of(from_bits(bits) + 0.5f) - 0x3f000000u));
        return ushort(sign | ((bits + 0xfffu + (bits >> 13 & 1u) - 0x38000000u) >> 13));
    }
    static float unpack(ushort half) {
        uint bits = (half & 0x7fffu) << 13;
        float x = from_bits(bits) * 0x1p112f;  // small numbers too
        if (bits >= 0x0f800000u) x = from_bits(bits | 0x7f800000u);
        return from_bits(bits_of(x) | (half & 0x8000u) << 16);
    }
};

struct BfloatFormat {
    static constexpr bool from_float = false;
    static ushort pack(float x) {
        uint bits = bits_of(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return ushort(bits >> 16 | 0x40u);  // quiet NaN
        return ushort((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);  // to nearest, ties to even
    }
    static float unpack(ushort bits) { return from_bits(uint(bits) << 16); }
};

template <typename F>
struct Short {
    ushort bits;
    Short() = default;
    template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N> &&
                                                      (F::from_float || std::is_integral_v<N>)>>
    Short(N x) : bits(F::pack(static_cast<float>(x))) {}
    template <typename N,
              typename = std::enable_if_t<std::is_floating_point_v<N> && !F::from_float>,
              typename = void>
    explicit Short(N x) : bits(F::pack(static_cast<float>(x))) {}
    template <typename G, typename = std::enable_if_t<!std::is_same_v<F, G>>>
    explicit Short(Short<G> x) : bits(F::pack(static_cast<float>(x))) {}
    operator float() const { return F::unpack(bits); }
};

template <typename T>
constexpr bool integral = std::is_integral_v<T>;

#define RUNNER_OPERATOR(op)                                                      \
    template <typename F>                                                        \
    Short<F> operator op(Short<F> a, Short<F> b) {                               \
        return Short<F>(static_cast<float>(a) op static_cast<float>(b));         \
    }                                                                            \
    template <typename F, typename N, typename = std::enable_if_t<integral<N>>>  \
    Short<F> operator op(Short<F> a, N b) {                                      \
        return a op Short<F>(b);                                                 \
    }                                                                            \
    template <typename F, typename N, typename = std::enable_if_t<integral<N>>>  \
    Short<F> operator op(N a, Short<F> b) {                                      \
        return Short<F>(a) op b;                                                 \
    }                                                                            \
    template <typename F, typename N>                                            \
    Short<F>& operator op##=(Short<F>& a, N b) {                                 \
        return a = Short<F>(a op b);                                             \
    }
RUNNER_OPERATOR(+)
RUNNER_OPERATOR(-)
RUNNER_OPERATOR(*)
RUNNER_OPERATOR(/)
#undef RUNNER_OPERATOR

template <typename F>
Short<F> operator-(Short<F> a) {
    Short<F> negative;
    negative.bits = ushort(a.bits ^ 0x8000u);
    return negative;
}

}  // namespace runner

typedef runner::Short<runner::HalfFormat> half;
typedef runner::Short<runner::BfloatFormat> bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;

namespace metal {

template <typename T, typename U>
T as_type(U x) {
    static_assert(sizeof(T) == sizeof(U), "as_type between types of different sizes");
    T result;
    std::memcpy(&result, &x, sizeof(T));
    return result;
}

#define RUNNER_FUNCTION(name, expression)                       \
    inline float name(float x) { return expression; }           \
    template <typename F>                                       \
    runner::Short<F> name(runner::Short<F> x) {                 \
        return runner::Short<F>(name(static_cast<float>(x)));   \
    }
#define RUNNER_FUNCTIONS                          \
    RUNNER_FUNCTION(exp, ::expf(x))               \
    RUNNER_FUNCTION(exp2, ::exp2f(x))             \
    RUNNER_FUNCTION(log, ::logf(x))               \
    RUNNER_FUNCTION(log2, ::log2f(x))             \
    RUNNER_FUNCTION(sqrt, ::sqrtf(x))             \
    RUNNER_FUNCTION(rsqrt, 1.0f / ::sqrtf(x))     \
    RUNNER_FUNCTION(sin, ::sinf(x))               \
    RUNNER_FUNCTION(cos, ::cosf(x))               \
    RUNNER_FUNCTION(floor, ::floorf(x))           \
    RUNNER_FUNCTION(ceil, ::ceilf(x))             \
    RUNNER_FUNCTION(rint, ::rintf(x))             \
    RUNNER_FUNCTION(fabs, ::fabsf(x))
RUNNER_FUNCTIONS
namespace fast { RUNNER_FUNCTIONS }
namespace precise { RUNNER_FUNCTIONS }
#undef RUNNER_FUNCTIONS
#undef RUNNER_FUNCTION

inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return ::fabsf(x) == INFINITY; }
inline bool isfinite(float x) { return ::fabsf(x) < INFINITY; }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline float divide(float a, float b) { return a / b; }
namespace fast { using metal::divide; using metal::fma; }
namespace precise { using metal::divide; using metal::fma; }

// Of two numbers, one of which is no number, the other is smallest and largest.
template <typename T>
T min(T a, T b) { return b < a || a != a ? b : a; }
template <typename T>
T max(T a, T b) { return a < b || a != a ? b : a; }
template <typename T>
T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <typename T>
T abs(T x) { return x < T(0) ? T(-x) : x; }
template <typename T>
T select(T no, T yes, bool which) { return which ? yes : no; }
namespace fast { using metal::clamp; using metal::max; using metal::min; }
inline float fmin(float a, float b) { return min(a, b); }
inline float fmax(float a, float b) { return max(a, b); }

template <typename T>
T popcount(T x) { return T(__builtin_popcountll(std::make_unsigned_t<T>(x))); }
template <typename T>
T ctz(T x) { return x ? T(__builtin_ctzll(x)) : T(sizeof(T) * 8); }
template <typename T>
T clz(T x) {
    return x ? T(__builtin_clzll(std::make_unsigned_t<T>(x)) - int(64 - sizeof(T) * 8))
             : T(sizeof(T) * 8);
}

template <typename T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
    static constexpr float infinity() { return INFINITY; }
    static constexpr float quiet_NaN() { return NAN; }
    static constexpr float max() { return 3.402823466e+38f; }
    static constexpr float lowest() { return -3.402823466e+38f; }
};

// The standard library's traits by Metal's names.
using std::conditional_t;
using std::enable_if_t;
using std::is_same_v;

}  // namespace metal
