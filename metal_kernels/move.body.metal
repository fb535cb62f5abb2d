move_cells<T, D>(
    source,
    target,
    from_keys,
    from_values,
    move_sizes(numbers),
    const_cast<device T*>(keys),
    const_cast<device T*>(values),
    thread_position_in_grid);
if (thread_position_in_grid.x < 8 && thread_position_in_grid.y == 0) {
    done[thread_position_in_grid.x] = 1;
}
