threadgroup float near_levels[2 * LEVELS];
threadgroup uint2 near[range_words<float16_t>(D)];
threadgroup uint4 key_words[Tiles<D, BITS>::KEY_WORDS];
threadgroup uint4 value_words[Tiles<D, BITS>::VALUE_WORDS];
sealed_prefill<T, D, BITS, TABLE, GROUPS, SIMDS>(
    queries,
    sealed,
    rows,
    segments,
    bias,
    means,
    levels,
    numbers,
    scale[0],
    out,
    sums,
    near_levels,
    near,
    key_words,
    value_words,
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
