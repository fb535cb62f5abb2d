// Vectors of two, three and four numbers, and the swizzles that the kernels use.
#pragma once

namespace runner {
template <typename T, int N>
struct Elements;
}

namespace metal {

template <typename T, int N>
struct vec;

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    vec(T a) : x(a), y(a) {}
    vec(T a, T b) : x(a), y(b) {}
    template <typename U>
    explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
    T& operator[](int i) { return (&x)[i]; }
    const T& operator[](int i) const { return (&x)[i]; }
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
    T x, y, z;
    vec() = default;
    vec(T a) : x(a), y(a), z(a) {}
    vec(T a, T b, T c) : x(a), y(b), z(c) {}
    template <typename U>
    explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
    T& operator[](int i) { return (&x)[i]; }
    const T& operator[](int i) const { return (&x)[i]; }
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
    union {
        struct { T x, y, z, w; };
        struct { vec<T, 2> xy, zw; };
        struct { vec<T, 2> lo, hi; };
        vec<T, 3> xyz;
    };
    vec() = default;
    vec(T a) : x(a), y(a), z(a), w(a) {}
    vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    template <typename U>
    explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
    T& operator[](int i) { return (&x)[i]; }
    const T& operator[](int i) const { return (&x)[i]; }
};

#define RUNNER_OPERATOR(op)                                                       \
    template <typename T, int N>                                                  \
    vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {               \
        vec<T, N> result;                                                         \
        for (int i = 0; i < N; i++) result[i] = T(a[i] op b[i]);                  \
        return result;                                                            \
    }                                                                             \
    template <typename T, int N>                                                  \
    vec<T, N> operator op(const vec<T, N>& a, std::common_type_t<T> b) {          \
        return a op vec<T, N>(b);                                                 \
    }                                                                             \
    template <typename T, int N>                                                  \
    vec<T, N> operator op(std::common_type_t<T> a, const vec<T, N>& b) {          \
        return vec<T, N>(a) op b;                                                 \
    }                                                                             \
    template <typename T, int N, typename U>                                      \
    vec<T, N>& operator op##=(vec<T, N>& a, const U& b) {                         \
        return a = a op b;                                                        \
    }
RUNNER_OPERATOR(+)
RUNNER_OPERATOR(-)
RUNNER_OPERATOR(*)
RUNNER_OPERATOR(/)
RUNNER_OPERATOR(&)
RUNNER_OPERATOR(|)
RUNNER_OPERATOR(>>)
RUNNER_OPERATOR(<<)
#undef RUNNER_OPERATOR

template <typename T, int N>
vec<T, N> operator-(const vec<T, N>& a) {
    vec<T, N> result;
    for (int i = 0; i < N; i++) result[i] = -a[i];
    return result;
}
template <typename T, int N>
T dot(const vec<T, N>& a, const vec<T, N>& b) {
    T sum = a[0] * b[0];
    for (int i = 1; i < N; i++) sum += a[i] * b[i];
    return sum;
}
template <typename T, int N>
vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
    vec<T, N> result;
    for (int i = 0; i < N; i++) result[i] = T(fma(a[i], b[i], c[i]));
    return result;
}

}  // namespace metal

#define RUNNER_VECTORS(T)          \
    typedef metal::vec<T, 2> T##2; \
    typedef metal::vec<T, 3> T##3; \
    typedef metal::vec<T, 4> T##4;
RUNNER_VECTORS(float)
RUNNER_VECTORS(half)
RUNNER_VECTORS(bfloat)
RUNNER_VECTORS(int)
RUNNER_VECTORS(uint)
RUNNER_VECTORS(short)
RUNNER_VECTORS(ushort)
RUNNER_VECTORS(uchar)
RUNNER_VECTORS(long)
RUNNER_VECTORS(ulong)
RUNNER_VECTORS(bool)
#undef RUNNER_VECTORS
