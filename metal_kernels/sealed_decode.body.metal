threadgroup float near_levels[2 * LEVELS];
threadgroup uint2 near[SIMDS * range_words<typename Coded<T>::Number>(D)];
threadgroup float pool[sealed_floats<D, BITS>(SIMDS)];
sealed_decode<T, D, BITS, TABLE, SIMDS>(
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
    pool,
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
