threadgroup float pool[SIMDS * ACROSS * KEPT];
merge<O, D, SIMDS>(
    found,
    found_sums,
    found_shape[0] / int(threadgroups_per_grid.x),
    threadgroups_per_grid.x,
    out,
    sums,
    pool,
    threadgroup_position_in_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
