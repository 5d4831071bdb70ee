/* Return the x86-64 level (1 to 4) of the processor, or 0 on other architectures. */
int trigraph_cpu_level(void);

int trigraph_cpu_level(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return 3;
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") ? 2 : 1;
#else
    return 0;
#endif
}
