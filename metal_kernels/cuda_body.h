// Functions took pointers to threadgroup memory; the kernel declares it, and asks where it is.
#undef threadgroup
#define threadgroup __shared__
#define thread_index_in_simdgroup simdgroup_lane()
#define simdgroup_index_in_threadgroup (threadIdx.x / 32u)
#define thread_index_in_threadgroup (threadIdx.x / 32u * 32u + simdgroup_lane())
#define threadgroup_position_in_grid uint3{blockIdx.x, blockIdx.y, blockIdx.z}
#define threadgroups_per_grid uint3{gridDim.x, gridDim.y, gridDim.z}
#define threads_per_grid uint3{gridDim.x * blockDim.x, gridDim.y, gridDim.z}
#define thread_position_in_grid \
    uint3{blockIdx.x * blockDim.x + thread_index_in_threadgroup, blockIdx.y, blockIdx.z}
