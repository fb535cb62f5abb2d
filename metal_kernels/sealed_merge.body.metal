threadgroup float near[TILE * SHARE * D];
threadgroup float turned[TILE * D];
threadgroup float joined[TILE * SHARE * 32];
sealed_merge<F, O, D, TILE, SHARE>(
    found,
    found_sums,
    sealed_found,
    sealed_sums,
    kinds,
    rotations,
    MergeSizes{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]},
    out,
    sums,
    near,
    turned,
    joined,
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    simdgroup_index_in_threadgroup,
    thread_index_in_simdgroup);
