// Memory between guards: what a kernel reads or writes beyond an array stops the program.
//
// In the first pass an array ends where the guard behind it begins, in the second it begins where
// the guard before it ends.
#pragma once
#include "dialect.h"

#undef device
#undef constant
#undef thread
#undef threadgroup

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

namespace {

const size_t page = sysconf(_SC_PAGESIZE);
constexpr size_t guard = size_t(16) << 30;  // bytes to each side: 32-bit indices cannot pass it

struct Region {
    const char* name;
    char* base;  // of the guard before it
    size_t room;
    char* data;
    size_t size;
};

std::vector<Region> regions;
int pass;                   // 0 or 1
uint3 group;                // the threadgroup that runs
const runner::Lane* lane;   // and its lane, if any
unsigned long instruction;  // that faulted, where that is known

// The program's last words: what a kernel did, and where.
[[noreturn]] void stop(const char* format, ...) {
    char text[512];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    fflush(stdout);
    dprintf(2, "%s", text);
    if (lane) {
        dprintf(2, "; threadgroup (%u, %u, %u), lane %u", group.x, group.y, group.z, lane->index);
        if (instruction) dprintf(2, "; at %#lx", instruction);
    }
    dprintf(2, "\n");
    _exit(3);
}

size_t rounded(size_t size, size_t to) { return (size + to - 1) / to * to; }

size_t map(const char* name, size_t size) {
    size_t body = rounded(size ? size : 1, page), room = body + 2 * guard;
    void* base = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) stop("no address space for `%s`", name);
    char* start = static_cast<char*>(base) + guard;
    if (mprotect(start, body, PROT_READ | PROT_WRITE)) stop("no memory for `%s`", name);
    char* data = pass == 0 ? start + body - rounded(size, 16) : start;
    if (size == 0) mprotect(start, body, PROT_NONE);
    regions.push_back({name, static_cast<char*>(base), room, data, size});
    return regions.size() - 1;
}

// What lies between an array and its guards, where it is not whole pages: of each pass its own, so
// that results that were read from there differ.
unsigned char slack() { return pass == 0 ? 0xA5 : 0x5A; }
void fill_slack(const Region& r) {
    char* start = r.base + guard;
    char* end = r.base + r.room - guard;
    memset(start, slack(), r.data - start);
    memset(r.data + r.size, slack(), end - r.data - r.size);
}
void check_slack(const Region& r) {
    if (!r.size) return;
    const char* end = r.base + r.room - guard;
    for (const char* p = r.base + guard; p < end; p++) {
        if (p == r.data) p += r.size;
        if (p < end && static_cast<unsigned char>(*p) != slack())
            stop("wrote beyond `%s`, which has %zu bytes: at byte %td", r.name, r.size, p - r.data);
    }
}

void on_fault(int signal, siginfo_t* info, void* context) {
    if (signal == SIGALRM) stop("did not end in time");
    const char* at = static_cast<const char*>(info->si_addr);
    const char* verb = "reached";
#if defined(__x86_64__) && defined(__linux__)
    auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    verb = registers[REG_ERR] & 2 ? "wrote" : "read";
    instruction = registers[REG_RIP];
#endif
    for (const Region& r : regions) {
        if (at < r.base || at >= r.base + r.room) continue;
        if (at >= r.data && at < r.data + r.size) stop("wrote to the input `%s`", r.name);
        stop("%s beyond `%s`, which has %zu bytes: at byte %td", verb, r.name, r.size, at - r.data);
    }
    stop("%s memory that belongs to nothing (signal %d)", verb, signal);
}

// Faults and the clock end the program by `stop`.
void watch(int seconds) {
    static char handler_stack[64 * 1024];
    stack_t alternate = {};
    alternate.ss_sp = handler_stack;
    alternate.ss_size = sizeof handler_stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
        sigaction(signal, &action, nullptr);
    alarm(seconds);
}

}  // namespace
