threadgroup float pool[SIMDS * D];
merge<O, D, SIMDS>(
    found,
    found_sums,
    numbers[0],
    threadgroups_per_grid.x,
    out,
    sums,
    pool,
    threadgroup_position_in_grid.x,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
