threadgroup float x[D * SUBBLOCK];
threadgroup float spare[power_above(D) / 2 * SUBBLOCK];
threadgroup float mean[D];
threadgroup float centre[D];
threadgroup float step[D];
threadgroup uint ranges[D];
threadgroup uint exponents[2 * ((D + 31) / 32)];
sealed_store<T, D, BITS, FED>(
    keys,
    values,
    before,
    cells,
    kinds,
    means,
    rotations,
    feedback,
    bounds,
    SealSizes{numbers[0], numbers[1], numbers[2]},
    About{about[0], about[1], about[2]},
    made,
    faults,
    kept,
    Bench<D>{x, spare, mean, centre, step, ranges, exponents},
    threadgroup_position_in_grid,
    threadgroups_per_grid,
    thread_index_in_simdgroup);
