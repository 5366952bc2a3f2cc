/*
 * dwarf.c - the module libtenon-lines.so: the source line of an address, from the debug information
 * of the running program and its libraries, by libdw of elfutils. It looks in the files themselves,
 * never for separate debug files, which a server might be asked for.
 */
#include <elfutils/libdwfl.h>
#include <unistd.h>

#include "base/lines.h"

static int none(Dwfl_Module *m, void **user, const char *name, Dwarf_Addr base, const char *file,
                const char *link, GElf_Word crc, char **path)
{
    (void)m, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)path;
    return -1;
}

static const Dwfl_Callbacks callbacks = { .find_elf = dwfl_linux_proc_find_elf,
                                          .find_debuginfo = none };

/* Reports what is mapped now: a library may have been opened since the last time. */
static bool report(Dwfl *dwfl)
{
    dwfl_report_begin_add(dwfl);
    return dwfl_linux_proc_report(dwfl, getpid()) == 0 && dwfl_report_end(dwfl, NULL, NULL) == 0;
}

__attribute__((visibility("default"))) int tenon_line_at(const void *address, char *file,
                                                         size_t size)
{
    static Dwfl *dwfl;
    Dwarf_Addr at = (Dwarf_Addr)(uintptr_t)address;
    int line = 0;
    if (!dwfl) dwfl = dwfl_begin(&callbacks);
    if (!dwfl || (!dwfl_addrmodule(dwfl, at) && !report(dwfl))) return 0;
    Dwfl_Module *module = dwfl_addrmodule(dwfl, at);
    Dwfl_Line *found = module ? dwfl_module_getsrc(module, at) : NULL;
    const char *path = found ? dwfl_lineinfo(found, NULL, &line, NULL, NULL, NULL) : NULL;
    if (!path) return 0;
    snprintf(file, size, "%s", path);
    return line;
}
