store_cells<T, D>(
    queries,
    new_keys,
    new_values,
    cosines,
    sines,
    cells,
    store_sizes(numbers),
    const_cast<device T*>(keys),
    const_cast<device T*>(values),
    turned,
    thread_position_in_grid,
    int(threads_per_grid.z));
