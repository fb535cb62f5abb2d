// Matrices on NVIDIA's tensor cores: behind `cuda_dialect.h`, in place of what stands in
// `matrices.h` for machines that multiply 8 by 8.
//
// A warp multiplies 16 rows of 16 by 8 columns, the latter as lanes hold eight lines read across. So
// sixteen cells are the rows of scores, and sixteen columns of values are those of what is mixed.
#define OMNI_MATRICES

template <typename T>
inline uint matrix_word(const simdgroup_matrix<T, 8, 8>& matrix) {
    static_assert(sizeof(T) == 2, "two numbers in a word");
    uint word;
    memcpy(&word, &matrix.held, 4);
    return word;
}
inline uint turned_word(uint word) {
    uint turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}

// Rows for columns. The number of row `r` in column `c` is held by the warp's lane `4 * r + c / 2`.
inline simdgroup_matrix<float, 8, 8> across(const simdgroup_matrix<float, 8, 8>& matrix) {
    const uint row = (threadIdx.x & 31u) / 4u;
    simdgroup_matrix<float, 8, 8> turned;
#pragma unroll
    for (uint e = 0; e < 2; ++e) {
        const uint from = (threadIdx.x % 4u * 2u + e) * 4u + row / 2u;
        const float even = __shfl_sync(WHOLE_WARP, matrix.held.first, from);
        const float odd = __shfl_sync(WHOLE_WARP, matrix.held.second, from);
        turned.held[e] = row % 2u == 0u ? even : odd;
    }
    return turned;
}

template <typename T>
struct Factor {
    uint word;
};
template <>
struct Factor<float> {
    simdgroup_matrix<float, 8, 8> matrix;
};
template <typename T>
inline Factor<T> factor_of(const simdgroup_matrix<T, 8, 8>& lines, uint) {
    return Factor<T>{matrix_word(lines)};
}
inline Factor<float> factor_of(const simdgroup_matrix<float, 8, 8>& lines, uint) {
    return Factor<float>{across(lines)};
}

template <typename T>
inline Factor<T> standing_factor(const simdgroup_matrix<T, 8, 8>& lines) {
    return Factor<T>{turned_word(matrix_word(lines))};
}
inline Factor<float> standing_factor(const simdgroup_matrix<float, 8, 8>& lines) {
    return Factor<float>{lines};
}

inline uint over_1024(uint word, uint mask) {
    uint both;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(both) : "r"(word), "r"(mask), "r"(0x64006400u));
    return both;
}

inline uint two_halves(uint a, uint b, uint c) {
    uint sums;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
    return sums;
}

// Four matrices: the second stands below the first, the last two to the right of these.
template <typename T>
struct Quad {
    uint words[4];
};
template <>
struct Quad<float> {
    simdgroup_matrix<float, 8, 8> parts[4];
};
template <typename T>
struct Keys : Quad<T> {
    static constexpr bool turned = false;
};
template <typename T>
struct Values : Quad<T> {
    static constexpr bool turned = true;
};

// Of the four, the place in memory: first or next eight cells, first or next eight columns.
template <typename Q>
inline constexpr uint next_cells(uint part) {
    return Q::turned ? part / 2u : part % 2u;
}
template <typename Q>
inline constexpr uint next_columns(uint part) {
    return Q::turned ? part % 2u : part / 2u;
}

template <typename Q, typename T, typename E>
inline Q spread_quad(const E& first, const E& next, int pair) {
    Q quad;
#pragma unroll
    for (uint part = 0; part < 4; ++part) {
        const E& eight = next_cells<Q>(part) ? next : first;
        const int at = pair + int(next_columns<Q>(part));
        if constexpr (sizeof(T) == 2) {
            const uint word = eight.words[at];
            quad.words[part] = Q::turned ? turned_word(word) : word;
        } else {
            simdgroup_matrix<T, 8, 8> matrix;
            matrix.held = {as_type<T>(eight.words[at * 2]), as_type<T>(eight.words[at * 2 + 1])};
            quad.parts[part] = Q::turned ? across(matrix) : matrix;
        }
    }
    return quad;
}

template <typename Q, typename T>
inline Q load_quad(const T* from, int pitch, uint) {
    Q quad;
    const uint lane = threadIdx.x & 31u;
    if constexpr (sizeof(T) == 2) {
        const uint part = lane / 8u;
        const T* row =
            from + (next_cells<Q>(part) * 8u + lane % 8u) * pitch + next_columns<Q>(part) * 8u;
        const uint at = uint(__cvta_generic_to_shared(row));
        // Each eight lanes say where a matrix's rows are.
        if constexpr (Q::turned) {
            asm volatile(
                "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                : "=r"(quad.words[0]), "=r"(quad.words[1]), "=r"(quad.words[2]),
                  "=r"(quad.words[3])
                : "r"(at)
                : "memory");
        } else {
            asm volatile(
                "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                : "=r"(quad.words[0]), "=r"(quad.words[1]), "=r"(quad.words[2]),
                  "=r"(quad.words[3])
                : "r"(at)
                : "memory");
        }
    } else {
#pragma unroll
        for (uint part = 0; part < 4; ++part) {
            const T* corner = from + next_cells<Q>(part) * 8u * pitch + next_columns<Q>(part) * 8u;
            const T* at = corner + lane / 4u * pitch + lane % 4u * 2u;
            simdgroup_matrix<T, 8, 8> matrix;
            matrix.held = {at[0], at[1]};
            quad.parts[part] = Q::turned ? across(matrix) : matrix;
        }
    }
    return quad;
}

#define OMNI_MULTIPLY(type, name)                                                             \
    inline void multiply(                                                                     \
        simdgroup_matrix<float, 8, 8>* sums, const Quad<type>& left, const Factor<type>* right) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                    \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
            : "+f"(sums[0].held.first), "+f"(sums[0].held.second), "+f"(sums[1].held.first),  \
              "+f"(sums[1].held.second)                                                       \
            : "r"(left.words[0]), "r"(left.words[1]), "r"(left.words[2]), "r"(left.words[3]), \
              "r"(right[0].word), "r"(right[1].word));                                        \
    }
OMNI_MULTIPLY(float16_t, "f16")
OMNI_MULTIPLY(bfloat16_t, "bf16")
#undef OMNI_MULTIPLY

// In float32 throughout, which tensor cores do not do.
inline void multiply(
    simdgroup_matrix<float, 8, 8>* sums, const Quad<float>& left, const Factor<float>* right) {
    const uint row = threadIdx.x & 28u;
    const uint pair = threadIdx.x & 3u;
#pragma unroll
    for (uint part = 0; part < 4; ++part) {
        const MatrixPair<float>& factor = right[part / 2u].matrix.held;
        MatrixPair<float>& sum = sums[part % 2u].held;
#pragma unroll 1
        for (int k = 0; k < 8; ++k) {
            const float each = __shfl_sync(WHOLE_WARP, left.parts[part].held[k & 1], row + k / 2);
            sum.first += each * __shfl_sync(WHOLE_WARP, factor.first, k * 4 + pair);
            sum.second += each * __shfl_sync(WHOLE_WARP, factor.second, k * 4 + pair);
        }
    }
}

template <typename T>
inline void score(
    simdgroup_matrix<float, 8, 8>* scores, const Keys<T>& keys, const Factor<T>* lines) {
    multiply(scores, keys, lines);
}

constexpr bool LINES_ACROSS = true;
constexpr bool READS_AHEAD = true;

template <typename T>
struct Shares {
    Factor<T> factors[2];
};
template <typename T>
inline Shares<T> shares_of(const simdgroup_matrix<T, 8, 8>* weights, uint) {
    return Shares<T>{
        {{turned_word(matrix_word(weights[0]))}, {turned_word(matrix_word(weights[1]))}}};
}
inline Shares<float> shares_of(const simdgroup_matrix<float, 8, 8>* weights, uint) {
    return Shares<float>{{{weights[0]}, {weights[1]}}};
}

template <typename T>
inline void mix(
    simdgroup_matrix<float, 8, 8>* mixed, const Shares<T>& shares, const Values<T>& values) {
    multiply(mixed, values, shares.factors);
}
