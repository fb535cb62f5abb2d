// Metal's language on a CPU: what the kernels use of it, for g++ and clang.
//
// Address spaces are words without meaning here. Lanes are fibers of one thread (lanes.h), which
// give way to each other at barriers and at operations of a simdgroup. `half` and `bfloat` round
// after every operation, as Metal's do.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define METAL_FUNC inline
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#include "numbers.h"
#include "vectors.h"

namespace runner {

constexpr uint simd_width = 32;
constexpr uint widest = 64;  // bytes that a lane can hand to the others at once

// Where in the text something is called.
struct Place {
    const char* file;
    int line;
};

struct Lane {
    uint3 position;  // in the threadgroup
    uint index;      // in the threadgroup
    uint lane;       // in the simdgroup
    uint simdgroup;
};
const Lane& lane();
uint3 threadgroup_position();
uint3 threadgroup_size();
uint3 threadgroups();

void wait_for_group(Place place);
// Hands `size` bytes to the simdgroup and waits for all of it. Gives the values of its 32 lanes,
// one after another; they stay until the operation after the next.
const void* share(const void* value, uint size, Place place);
void* guarded(const char* name, uint size);  // threadgroup memory
[[noreturn]] void fail(const char* what, Place place);

template <typename T>
const T* share(T value, Place place) {
    static_assert(sizeof(T) <= widest, "too wide for one operation of a simdgroup");
    return static_cast<const T*>(share(&value, sizeof(T), place));
}
template <typename A>
A& threadgroup_array(const char* name) {
    return *static_cast<A*>(guarded(name, sizeof(A)));
}

}  // namespace runner

#include "simdgroup.h"

namespace metal {}
using namespace metal;

#define device
#define constant
#define thread
#define threadgroup
