// Metal's language with its address spaces as types, to be parsed by clang and never run: a pointer
// to one kind of memory does not turn into a pointer to another. Only declarations.
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uchar, uint8_t;
typedef unsigned short ushort, uint16_t;
typedef unsigned int uint, uint32_t;
typedef unsigned long ulong, uint64_t;
typedef _Float16 half, float16_t;
typedef __bf16 bfloat, bfloat16_t;

#define SPACES_VECTORS(T)                                     \
    typedef T T##2 __attribute__((ext_vector_type(2)));       \
    typedef T T##3 __attribute__((ext_vector_type(3)));       \
    typedef T T##4 __attribute__((ext_vector_type(4)));
SPACES_VECTORS(float)
SPACES_VECTORS(half)
SPACES_VECTORS(int)
SPACES_VECTORS(uint)
SPACES_VECTORS(ulong)
#undef SPACES_VECTORS

template <typename T, typename U>
T as_type(U);

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <typename T> T simd_sum(T);
template <typename T> T simd_max(T);
template <typename T> T simd_min(T);
template <typename T> T simd_shuffle(T, ushort);
template <typename T> T simd_shuffle_xor(T, ushort);
template <typename T> T simd_broadcast(T, ushort);
template <typename T> T min(T, T);
template <typename T> T max(T, T);
float log2(float);
float fabs(float);
float floor(float);
half2 fma(half2, half2, half2);
float exp2(float);
namespace fast {
float exp2(float);
}
namespace precise {
float divide(float, float);
float sqrt(float);
}

template <typename T, int ROWS, int COLUMNS>
struct simdgroup_matrix {
    typedef T Pair __attribute__((ext_vector_type(2)));
    Pair& thread_elements();
};
template <typename T>
void simdgroup_load(
    thread simdgroup_matrix<T, 8, 8>&, const threadgroup T*, ulong = 8, ulong2 = 0, bool = false);
template <typename T>
void simdgroup_load(
    thread simdgroup_matrix<T, 8, 8>&, const device T*, ulong = 8, ulong2 = 0, bool = false);
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(
    thread simdgroup_matrix<D, 8, 8>&,
    thread simdgroup_matrix<A, 8, 8>&,
    thread simdgroup_matrix<B, 8, 8>&,
    thread simdgroup_matrix<C, 8, 8>&);
