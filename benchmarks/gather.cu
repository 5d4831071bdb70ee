// Measures the peak rate of gathers: groups of 16 threads sum 16 random rows of 64 floats; each thread reads 16 bytes of a row.
extern "C" __global__ void sum_gathered_rows(const float4* table, const int* index, float4* out, long long count) {
    const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    const long long group = thread / 16, first = 16 * group;
    const int column = static_cast<int>(thread % 16);
    if (first >= count) {
        return;
    }
    const int length = count - first < 16 ? static_cast<int>(count - first) : 16;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
    for (int k = 0; k < length; ++k) {
        const float4 value = table[16LL * index[first + k] + column];
        sum.x += value.x;
        sum.y += value.y;
        sum.z += value.z;
        sum.w += value.w;
    }
    out[16 * group + column] = sum;
}
