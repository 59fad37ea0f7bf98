// Patches attention kernels with what watch.cu compiles to, by NVIDIA Sanitizer API. To be loaded before CUDA starts.
//
//   ORACLE_PATCHES  path of the compiled patches
//   ORACLE_KERNELS  parts of kernels' names, separated by commas: modules with one of them are patched

#define _GNU_SOURCE
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watch.h"

enum { MODULES = 4096, LAUNCHES = 65536, NAME_BYTES = 512 };

static CUmodule patched[MODULES];
static int modules, launches, failed;
static CUcontext context;
static oracle_watch watch;
static oracle_watch *device_watch;
static oracle_launch *device_launches;
static char (*names)[NAME_BYTES];

static int check(SanitizerResult result, const char *what)
{
    if (result == SANITIZER_SUCCESS)
        return 1;
    const char *text = "";
    sanitizerGetResultString(result, &text);
    fprintf(stderr, "oracle: %s: %s\n", what, text);
    failed = 1;
    return 0;
}

static int wanted(const char *cubin, size_t bytes)
{
    char list[1024];
    snprintf(list, sizeof list, "%s", getenv("ORACLE_KERNELS"));
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ","))
        if (memmem(cubin, bytes, name, strlen(name)))
            return 1;
    return 0;
}

static void loaded(const Sanitizer_ResourceModuleData *module)
{
    if (!module->pCubin || !wanted(module->pCubin, module->cubinSize) || modules == MODULES)
        return;
    if (context != module->context) {
        if (context || !check(sanitizerAddPatchesFromFile(getenv("ORACLE_PATCHES"), module->context), "patches"))
            return;
        context = module->context;
    }
    if (check(sanitizerPatchInstructions(SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, module->module, "oracle_accesses"),
              "accesses") &&
        check(sanitizerPatchInstructions(SANITIZER_INSTRUCTION_MEMCPY_ASYNC, module->module, "oracle_copies"),
              "copies") &&
        check(sanitizerPatchInstructions(SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, module->module,
                                         "oracle_bulk_copies"),
              "bulk copies") &&
        check(sanitizerPatchModule(module->module), "module"))
        patched[modules++] = module->module;
}

static void launched(const Sanitizer_LaunchData *launch)
{
    if (!device_launches || launches == LAUNCHES)
        return;
    for (int index = 0; index < modules; ++index) {
        if (patched[index] != launch->module)
            continue;
        snprintf(names[launches], NAME_BYTES, "%s", launch->functionName);
        check(sanitizerSetLaunchCallbackData(launch->hLaunch, launch->function, launch->hStream,
                                             device_launches + launches),
              "launch");
        ++launches;
        return;
    }
}

static void called(void *nothing, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void *data)
{
    (void)nothing;
    if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED)
        loaded(data);
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_BEGIN)
        launched(data);
}

__attribute__((constructor)) static void begin(void)
{
    Sanitizer_SubscriberHandle subscriber;
    if (!check(sanitizerSubscribe(&subscriber, called, NULL), "subscribe"))
        return;
    check(sanitizerEnableDomain(1, subscriber, SANITIZER_CB_DOMAIN_RESOURCE), "resources");
    check(sanitizerEnableDomain(1, subscriber, SANITIZER_CB_DOMAIN_LAUNCH), "launches");
}

// Adds a range of addresses. Returns 0, or 1 if there is no room.
int oracle_add(uint64_t base, uint64_t bytes)
{
    if (watch.ranges == ORACLE_RANGES)
        return 1;
    watch.base[watch.ranges] = base;
    watch.bytes[watch.ranges++] = bytes;
    return 0;
}

// From here on launches of patched kernels note their accesses, as many as `capacity`. Returns 0, or 1.
int oracle_begin(uint32_t capacity, uint32_t granule_bytes)
{
    Sanitizer_StreamHandle stream;
    void *accesses;
    oracle_launch *told = calloc(LAUNCHES, sizeof *told);
    names = calloc(LAUNCHES, NAME_BYTES);
    if (!told || !names || !context || failed)
        return 1;
    if (!check(sanitizerGetStreamHandle(context, NULL, &stream), "stream") ||
        !check(sanitizerAlloc(context, &accesses, (size_t)capacity * sizeof(oracle_access)), "memory") ||
        !check(sanitizerAlloc(context, (void **)&device_watch, sizeof watch), "memory"))
        return 1;
    watch.accesses = (uint64_t)accesses;
    watch.capacity = capacity;
    watch.granule_bytes = granule_bytes;
    for (int index = 0; index < LAUNCHES; ++index)
        told[index] = (oracle_launch){(uint64_t)device_watch, index, 0};
    oracle_launch *memory;
    if (!check(sanitizerAlloc(context, (void **)&memory, LAUNCHES * sizeof *told), "memory") ||
        !check(sanitizerMemcpyHostToDeviceAsync(device_watch, &watch, sizeof watch, stream), "copy") ||
        !check(sanitizerMemcpyHostToDeviceAsync(memory, told, LAUNCHES * sizeof *told, stream), "copy") ||
        !check(sanitizerStreamSynchronize(stream), "stream"))
        return 1;
    free(told);
    device_launches = memory;
    return 0;
}

// Copies what was noted, at most `capacity`, once the device is idle. Returns how many accesses there were, or -1.
int64_t oracle_end(oracle_access *accesses, uint32_t capacity)
{
    Sanitizer_StreamHandle stream;
    device_launches = NULL;
    if (failed || !check(sanitizerGetStreamHandle(context, NULL, &stream), "stream") ||
        !check(sanitizerMemcpyDeviceToHost(&watch, device_watch, sizeof watch, stream), "copy"))
        return -1;
    const uint32_t noted = watch.count < capacity ? watch.count : capacity;
    if (!check(sanitizerMemcpyDeviceToHost(accesses, (void *)watch.accesses, noted * sizeof *accesses, stream), "copy"))
        return -1;
    return watch.count;
}

int oracle_modules(void)
{
    return modules;
}
int oracle_launches(void)
{
    return launches;
}
const char *oracle_name(int launch)
{
    return names[launch];
}
