threadgroup uint4 key_words[tile_words(D, sizeof(T))];
threadgroup uint4 value_words[tile_words(D, sizeof(T))];
threadgroup float added[SUBBLOCK];
threadgroup int64_t ages[SUBBLOCK];
prefill<T, O, D, GROUPS, SIMDS>(
    queries,
    keys,
    values,
    rows,
    bounds,
    segments,
    order,
    bias,
    query_order,
    numbers,
    scale[0],
    out,
    sums,
    key_words,
    value_words,
    added,
    ages,
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
