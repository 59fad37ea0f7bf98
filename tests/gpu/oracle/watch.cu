// Called before each instruction of a patched kernel that accesses global memory (NVIDIA Sanitizer API): notes accesses
// that begin at a multiple of `granule_bytes` in a watched range. Compiled with nvcc's option for patches of tools.

#include <sanitizer_patching.h>
#include <stdint.h>

#include "watch.h"

#define PATCH extern "C" __device__ __noinline__ SanitizerPatchResult

static __device__ __forceinline__ void note(void *launch, uint64_t address, uint32_t bytes, uint32_t kind)
{
    const oracle_launch *of = static_cast<oracle_launch *>(launch);
    if (!of)
        return;
    oracle_watch *watch = reinterpret_cast<oracle_watch *>(of->watch);
    for (uint32_t range = 0; range < watch->ranges; ++range) {
        const uint64_t offset = address - watch->base[range];
        if (offset >= watch->bytes[range] || offset % watch->granule_bytes)
            continue;
        uint32_t place, x, y, z, nx, ny;
        uint64_t clock;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
        asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
        asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(z));
        asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(nx));
        asm volatile("mov.u32 %0, %%nctaid.y;" : "=r"(ny));
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
        asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(place) : "l"(&watch->count) : "memory");
        if (place >= watch->capacity)
            return;
        oracle_access *access = reinterpret_cast<oracle_access *>(watch->accesses) + place;
        access->clock = clock;
        access->offset = offset;
        access->program = x + nx * (y + ny * z);
        access->launch = of->number;
        access->range = range;
        access->kind_and_bytes = kind << 16 | bytes;
    }
}

PATCH oracle_accesses(void *launch, uint64_t, void *address, uint32_t bytes, uint32_t flags, const void *)
{
    note(launch, reinterpret_cast<uint64_t>(address), bytes, flags & 3);
    return SANITIZER_PATCH_SUCCESS;
}

PATCH oracle_copies(void *launch, uint64_t, void *address, uint32_t, uint32_t bytes, uint32_t zeros)
{
    if (zeros < bytes)
        note(launch, reinterpret_cast<uint64_t>(address), bytes, ORACLE_COPY);
    return SANITIZER_PATCH_SUCCESS;
}

PATCH oracle_bulk_copies(void *launch, uint64_t, uint64_t address, uint32_t, uint32_t, uint32_t blocks, uint32_t)
{
    note(launch, address, (blocks & 0xffff) * 16, ORACLE_COPY);
    return SANITIZER_PATCH_SUCCESS;
}
