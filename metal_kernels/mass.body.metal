threadgroup uint4 key_words[tile_words(D, sizeof(T))];
threadgroup float added[SUBBLOCK];
threadgroup int64_t ages[SUBBLOCK];
threadgroup float joined[SIMDS * SUBBLOCK];
mass<T, D, SIMDS>(
    queries,
    keys,
    rows,
    bounds,
    segments,
    order,
    bias,
    query_order,
    sums,
    numbers,
    listed_rows[0],
    scale[0],
    given,
    key_words,
    added,
    ages,
    joined,
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
